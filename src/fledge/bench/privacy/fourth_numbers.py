"""Numbers of the fourth corpus: the third's in other written forms, and ids of six more countries.

A number with a check digit is drawn until python-stdnum accepts it, or made so that it must.
"""

from __future__ import annotations

import random

from stdnum.ar import cuit
from stdnum.at import vnr
from stdnum.be import nn
from stdnum.br import cnpj, cpf
from stdnum.cl import rut
from stdnum.de import idnr
from stdnum.es import dni, nie
from stdnum.gb import nhs
from stdnum.ie import pps
from stdnum.nl import bsn
from stdnum.pe import ruc
from stdnum.pt import nif
from stdnum.us import rtn, ssn

from fledge.bench.privacy.shapes import one_of, shape, valid
from fledge.bench.privacy.third_numbers import NUMBERS as THIRD
from fledge.bench.privacy.third_numbers import Numbers
from fledge.data.privacy import entities as e

# Telephones: national, in brackets, dotted, dashed, in one piece.
HOME = {
    "en": "(NN#)_NN#-#### NN#-NN#-#### NN#.NN#.#### NN#_NN#_#### (NN#)_NN#.#### NN#NN##### NN#-NN#-####_x## 07###_######"
    " 07###_###_### 07######### 020_####_#### 0161_###_#### (0131)_###_#### 01865_###### 04##_###_### (02)_9###_#### 085_###_####",
    "de": "0157_######## 0172/####### 0179_#######  0163-####### 030_########  (06221)_###### 0341_/_######-# 089/######"
    " 0211_##_##_## 0699_###_##_## 0676_####### 044_###_##_## 07071.######",
    "fr": "06_##_##_##_## 07_##_##_##_## 06.##.##.##.## 06-##-##-##-## 0612###### 01_4#_##_##_## 05.56.##.##.## 04_78_##_##_##"
    " 0478_##_##_## 079_###_##_## 438-NN#-####",
    "es": "6##_##_##_## 6##_###_### 7########  6##-###-### 6##.##.##.## 91_###_##_## (93)_###_##_## 954_######  33_####_####"
    " (55)_####_#### 11_####-#### 30#_###_####",
    "pt": "9##_###_### 91#_##_##_## 92####### 21_###_##_## 22.###.##.## (11)_9####-#### (85)_9_####-#### 51_9####_#### 119########"
    " (31)_3###-####",
}
ABROAD = {
    "en": "+1_NN#_NN#_#### +1_(NN#)_NN#-#### +1-NN#-NN#-#### +1.NN#.NN#.#### +1NN#NN##### +44_7###_###### +44_(0)7###_###_###"
    " +447######### +353_86_###_#### +61_4##_###_### +91_9####_##### +64_27_###_#### 001_NN#_NN#_####",
    "de": "+49_157_######## +49_(0)30_####### +49(172)_####### +49.89.###### 0049_176_#######  +49_221_######-## +43_664_###_##_##"
    " +41_79_###_##_## 0041_44_###_##_##",
    "fr": "+33_6_##_##_##_## +33_(0)1_4#_##_##_## +336######## +33.7.##.##.##.## 0033_6##_##_##_## +32_475_##_##_## +41_22_###_##_##"
    " +221_77_###_##_## +212_6##-######",
    "es": "+34_6##_##_##_## +34_6##_###_### (+34)_91_###_##_## +346######## 0034_6########  +52_55_####_#### +54_9_11_####-####"
    " +56_9_####_#### +57_30#_#######  +51_9##_###_###",
    "pt": "+351_9##_###_### (+351)_21_###_##_## +3519######## 00351_22_#######  +55_11_9####-#### +55_(21)_9####-#### +55119########"
    " +244_9##_###_### +258_84_###_####",
}
ACCOUNT = {
    "en": "######## ########## ####-####-## ############ ###_###_####",
    "de": "########## ####### ###_####_### ########",
    "fr": "###########",
    "es": "##########",
    "pt": "#####-# ########-# ##.###-#",
}
PASSPORT = {
    "en": "?######## 5######## 1######## PA####### L#######",
    "de": "C#V?R#T## CF?#X#K## C0#Y#H?#R",
    "fr": "##??##### 1#C?#####",
    "es": "???###### PA?###### G########",
    "pt": "C?###### ??###### F?######",
}
LICENCE = {
    "en": "?####### ?###-####-#### ########## ?###_####_#### ?##-##-####",
    "de": "B###?R*2*I## J1*00###*5# K0704*#?#*1 ########",
    "fr": "############ ##??##### 9#####3#####",
    "es": "########## ???#####-##",
    "pt": "0########## L-####### ??-######_#",
}


def _svnr(rng: random.Random) -> str:
    date = f"{rng.randint(1, 28):02d}{rng.randint(1, 12):02d}{rng.randint(40, 99):02d}"
    while True:
        number = f"{rng.randint(100, 999)}{rng.randint(0, 9)}{date}"
        if vnr.is_valid(number):
            return number[:4] + rng.choice(("", " ", " ", "-")) + number[4:]


def _niss(rng: random.Random) -> str:
    year, month, day = rng.randint(40, 99), rng.randint(1, 12), rng.randint(1, 28)
    while True:
        serial = rng.randint(1, 997)
        body = f"{year}{month:02d}{day:02d}{serial:03d}"
        number = f"{body}{97 - int(body) % 97:02d}"
        if nn.is_valid(number):
            dotted = f"{year}.{month:02d}.{day:02d}-{serial:03d}.{number[-2:]}"
            return rng.choice((number, dotted, dotted))


def _licence_gb(rng: random.Random) -> str:
    family = "".join(rng.choices("BCDFGHKLMNPRSTW", k=1)) + "".join(rng.choices("AEIORLNST", k=4))
    born = f"{rng.randint(4, 9)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{rng.randint(0, 9)}"
    return f"{family}{born}{shape(rng, '?9#??')}"


NUMBERS: Numbers = {
    **THIRD,
    "ssn": (e.NATIONAL_ID, valid(ssn, "1##-##-####", "6##-##-####", "3##_##_####", "0##-##-####")),
    "nino": (e.NATIONAL_ID, one_of("CE######B", "MN_##_##_##_A", "RH-##-##-##-D", "SK_######_C", "tp######a")),
    "pps": (e.NATIONAL_ID, valid(pps, "#######?", "#######?A", "#######_?")),
    "svnr": (e.NATIONAL_ID, _svnr),
    "niss": (e.NATIONAL_ID, _niss),
    "cni": (e.NATIONAL_ID, one_of("############", "?#?#?###?", "##0###A#####")),
    "dni": (e.NATIONAL_ID, valid(dni, "########?", "########-?", "########_?", "##.###.###_?")),
    "nie": (e.NATIONAL_ID, valid(nie, "X#######?", "Y#######-?", "Z-#######-?", "X_#######_?")),
    "rut": (e.NATIONAL_ID, valid(rut, "1#.###.###-#", "########-#", "9.###.###-#", "1#.###.###-K")),
    "cedula": (e.NATIONAL_ID, one_of("1.0##.###.###", "##.###.###", "10########", "52######")),
    "dniar": (e.NATIONAL_ID, one_of("##.###.###", "2#######", "3#.###.###")),
    "cpf": (e.NATIONAL_ID, valid(cpf, "###.###.###-##", "#########-##", "###########", "###_###_###_##")),
    "bsn": (e.NATIONAL_ID, valid(bsn, "1########", "###.###.###", "#########")),
    "steuer": (e.TAX_ID, valid(idnr, "###########", "##_###_###_###", "##/###/###/###", "##-###-###-###")),
    "cuit": (e.TAX_ID, valid(cuit, "20-########-#", "27-########-#", "20########9")),
    "ruc": (e.TAX_ID, valid(ruc, "10#########", "20#########")),
    "cnpj": (e.TAX_ID, valid(cnpj, "##.###.###/0001-##", "##.###.###/0002-##", "########0001##")),
    "ptnif": (e.TAX_ID, valid(nif, "2########", "1##_###_###", "2##.###.###")),
    "aba": (e.BANK_ROUTING, valid(rtn, "02#######", "12#######", "11#######", "06####_###")),
    "sortcode": (e.BANK_ROUTING, one_of("60-##-##", "11-0#-##", "77_##_##", "23####")),
    "transit": (e.BANK_ROUTING, one_of("#####-815", "#####-006", "0815#####")),
    "blz": (e.BANK_ROUTING, one_of("#0#_#00_##", "#######0", "370_#0#_##")),
    "agencia": (e.BANK_ROUTING, one_of("####", "####-#", "0###")),
    "rib": (e.BANK_ACCOUNT, one_of("30004_0####_###########_##", "1#706_#####_###########_##", "20041#################")),
    "cnh": (e.DRIVER_LICENSE, one_of("0##########", "###########")),
    "dlgb": (e.DRIVER_LICENSE, _licence_gb),
    "mrn": (e.MEDICAL_ID, one_of("#######", "00########", "##-##-##", "E#########", "0###-####")),
    "nhs": (e.MEDICAL_ID, valid(nhs, "###_###_####", "###-###-####", "##########")),
    "patient": (e.MEDICAL_ID, one_of("#######", "P#######", "20##-#####", "K-######", "000#######")),
    "tsi": (e.MEDICAL_ID, one_of("????1######00#", "????_0_######_00_#", "CYL_########")),
    "utente": (e.MEDICAL_ID, one_of("#########", "###_###_###", "3########")),
    "cns": (e.MEDICAL_ID, one_of("7##_####_####_####", "8##############", "70##########_####")),
    "kvnr": (e.INSURANCE_ID, one_of("?#########", "?###_###_###", "?_###_###_###")),
    "member": (e.INSURANCE_ID, one_of("???#########", "W##_####_#####", "H########-01", "???-##-####-#", "9########A")),
    "policy": (e.INSURANCE_ID, one_of("HO-####-######", "AU##########", "##/######/##", "##########", "P?-#######", "A#######-K")),
}  # fmt: skip
