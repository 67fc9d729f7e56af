"""Numbers of the third corpus: telephones, national and tax ids, banks, passports, licences, medicine, insurance.

A number with a check digit is drawn until python-stdnum accepts it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from stdnum.au import tfn
from stdnum.br import cnpj, cpf
from stdnum.ca import sin
from stdnum.ch import ssn as ahv
from stdnum.de import idnr
from stdnum.es import ccc, cif, dni, nie
from stdnum.fr import nif as spi
from stdnum.fr import nir
from stdnum.gb import nhs, utr
from stdnum.in_ import aadhaar
from stdnum.it import codicefiscale, iva
from stdnum.mx import curp, rfc
from stdnum.nl import bsn
from stdnum.pl import pesel
from stdnum.pt import nif
from stdnum.us import itin, rtn, ssn

from fledge.bench.privacy.shapes import one_of, shape, valid
from fledge.data.privacy import entities as e

# Telephones at home, as people type them.
HOME = {
    "en_US": "(NN#)_NN#-#### NN#-NN#-#### NN#.NN#.#### NN#_NN#_#### +1_NN#_NN#_#### 1.NN#.NN#.#### NN#-NN#-####_ext._### (NN#)NN#-#### +1NN#NN#####",
    "en_GB": "07###_###_### 07###_###### +44_7###_###### 020_7###_#### 0121_###_#### 01223_###### (0117)_###_#### 07#########",
    "en_IN": "+91_9####_##### 98#######6 91-98###-##### 080-2###_#### +91-99########",
    "en_CA": "(416)_NN#-#### 604-NN#-#### +1_(514)_NN#-#### 905.NN#.####",
    "en_AU": "04##_###_### +61_4##_###_### (03)_9###_#### 02_8###_####",
    "de_DE": "0151_######## 0176/######## 030/####### +49_(0)_40_###### (0221)_##_##_## 0711_-_###### +49_160_####### 089_###_###-##",
    "de_AT": "0660_#######  +43_1_###_##_## 01/###_##_## +43/676/#######",
    "de_CH": "076_###_##_## +41_44_###_##_## 031_###_##_##",
    "fr_FR": "06_##_##_##_## 07.##.##.##.## 0#######6# 01-4#-##-##-## +33_1_4#_##_##_## +33_7_##_##_##_## 04_##_##_##_##",
    "fr_CH": "022_###_##_## +41_21_###_##_##",
    "fr_CA": "514_NN#-#### (418)_NN#-####",
    "es_ES": "6##_##_##_## 6##_###_### 93_###_##_## +34_7##_###_### 9########",
    "es_MX": "55_####_#### +52_33_####_#### (81)_####-#### 222_###_##_##",
    "es_AR": "+54_9_11_####-#### 011_15-####-#### (0341)_4##-####",
    "es_CO": "3##_###_#### +57_310_###_####",
    "pt_BR": "(11)_9####-#### (31)_3###-#### 21_9####-#### +55_71_9####_#### 119########",
    "pt_PT": "9##_###_### 21_###_##_## +351_9##_###_### 22#######",
}  # fmt: skip
ABROAD = (
    "+39_06_####_#### +39_347_#######  +31_6-######## +32_4##_##_##_## +46_8-###_##_## +47_9##_##_### +45_##_##_##_## +48_###_###_### "
    "+420_###_###_### +36_30_###_#### +40_72#_###_### +380_67_###_##_## +90_532_###_##_## +20_10_####_#### +254_7##_###### "
    "+233_24_###_#### +92_300_####### +880_17##-###### +62_812-####-#### +63_917_###_#### +84_90_###_##_## +66_8#_###_#### "
    "+86_139####-#### +81_80_####_#### +82-10-####-#### +852_9###_#### +966_5#_###_#### +972-54-###-#### +64_21_###_#### "
    "+56_9_####_#### +51_9##_###_### +593_9#_###_#### 0039_02_####### 0049_30_####### 00351_21#_###_### 00_55_11_####-####"
)


def _nir(rng: random.Random) -> str:
    made = valid(nir, "17#01#501####0#", "28#1075########", "19#0813########")(rng)
    spaced = " ".join((made[0], made[1:3], made[3:5], made[5:7], made[7:10], made[10:13], made[13:]))
    return rng.choice((made, spaced, spaced))


_LETTERS = "BCDFGHLMNPRSTVZ"


def _fiscal(rng: random.Random) -> str:
    head = "".join(rng.choices(_LETTERS, k=6))
    tail = f"{rng.randint(40, 99)}{rng.choice('ABCDEHLMPRST')}{rng.randint(1, 28):02d}{rng.choice('HFLDAG')}{rng.randint(100, 999)}"
    return head + tail + codicefiscale.calc_check_digit(head + tail)


def _curp(rng: random.Random) -> str:
    while True:
        made = f"{rng.choice('GMLRH')}{rng.choice('AEO')}{rng.choice('RLM')}{rng.choice('JMAL')}{rng.randint(60, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}"
        made += f"{rng.choice('HM')}{rng.choice(('DF', 'JC', 'NL', 'PL'))}{''.join(rng.choices('RLMNSTGZ', k=3))}0{rng.randint(0, 9)}"
        if curp.is_valid(made):
            return made


def _rfc(rng: random.Random) -> str:
    while True:
        made = (
            f"{''.join(rng.choices('GMLRHBCS', k=1))}{rng.choice('AEO')}{''.join(rng.choices('RLMZ', k=2))}"
        )
        made += f"{rng.randint(60, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{shape(rng, '*#*')}"
        if rfc.is_valid(made):
            return made


def _rvnr(rng: random.Random) -> str:
    day, month, year = rng.randint(1, 28), rng.randint(1, 12), rng.randint(40, 99)
    gap = rng.choice(("", " "))
    return gap.join(
        (f"{rng.randint(10, 89)}", f"{day:02d}{month:02d}{year}", shape(rng, "?"), shape(rng, "###"))
    )


def _dl_gb(rng: random.Random) -> str:
    return (
        rng.choice(("MORGA", "SMITH", "JONES", "PATEL", "KHAN9"))
        + shape(rng, "6")
        + f"{rng.randint(1, 12):02d}"
        + shape(rng, "1#5?M9??")
    )


Numbers = dict[str, tuple[str, Callable[[random.Random], str]]]
NUMBERS: Numbers = {
    # National ids.
    "ssn": (e.NATIONAL_ID, valid(ssn, "3##-##-####", "4##-##-####", "5##_##_####", "2##-##-####")),
    "ssnflat": (e.NATIONAL_ID, valid(ssn, "4########", "5########")),
    "nino": (e.NATIONAL_ID, one_of("AB######C", "JG_##_##_##_D", "PY_##_##_##_A", "WX######B", "ZL-##-##-##-C")),
    "aadhaar": (e.NATIONAL_ID, valid(aadhaar, "4###_####_####", "7###########", "9###-####-####")),
    "sin": (e.NATIONAL_ID, valid(sin, "4##_###_###", "5##-###-###")),
    "perso": (e.NATIONAL_ID, one_of("L01X00T47#", "LF3ZT4####", "T22000#29#", "C01X#0P3#8")),
    "rvnr": (e.NATIONAL_ID, _rvnr),
    "nir": (e.NATIONAL_ID, _nir),
    "dni": (e.NATIONAL_ID, valid(dni, "########?", "########-?", "##.###.###-?")),
    "nie": (e.NATIONAL_ID, valid(nie, "X#######?", "Y-#######-?", "Z#######?")),
    "curp": (e.NATIONAL_ID, _curp),
    "cpf": (e.NATIONAL_ID, valid(cpf, "###.###.###-##", "###.###.###-##", "#########-##", "###########")),
    "rg": (e.NATIONAL_ID, one_of("##.###.###-#", "#########", "##.###.###-X", "MG-##.###.###")),
    "ccpt": (e.NATIONAL_ID, one_of("########_#_ZZ#", "########_#ZY#", "#########ZX#")),
    "fiscal": (e.NATIONAL_ID, _fiscal),
    "ahv": (e.NATIONAL_ID, valid(ahv, "756.####.####.##")),
    "pesel": (e.NATIONAL_ID, valid(pesel, "8#0#1######", "9#1#2######")),
    "bsn": (e.NATIONAL_ID, valid(bsn, "1########", "2##.##.###")),
    # Tax ids.
    "itin": (e.TAX_ID, valid(itin, "9##-7#-####", "9##-8#-####")),
    "ein": (e.TAX_ID, one_of("##-#######")),
    "utr": (e.TAX_ID, valid(utr, "##########", "#####_#####")),
    "pan": (e.TAX_ID, one_of("ABCPK####D", "BQZPS####L", "AFRPM####R")),
    "tfn": (e.TAX_ID, valid(tfn, "###_###_###")),
    "steuer": (e.TAX_ID, valid(idnr, "##_###_###_###", "###########", "##_###_###_###")),
    "stnr": (e.TAX_ID, one_of("##/###/#####", "###/####/####", "##_###_#####")),
    "ustid": (e.TAX_ID, one_of("DE#########", "DE_###_###_###", "ATU########")),
    "spi": (e.TAX_ID, valid(spi, "3############", "1#_##_###_###_###", "0#_##_###_###_###")),
    "tva": (e.TAX_ID, one_of("FR##_###_###_###", "FR###########")),
    "cif": (e.TAX_ID, valid(cif, "B########", "A-########")),
    "rfc": (e.TAX_ID, _rfc),
    "cnpj": (e.TAX_ID, valid(cnpj, "##.###.###/0001-##", "########0001##")),
    "ptnif": (e.TAX_ID, valid(nif, "2########", "1##_###_###")),
    "piva": (e.TAX_ID, valid(iva, "IT0##########", "0##########")),
    # Banks.
    "aba": (e.BANK_ROUTING, valid(rtn, "0########", "1########", "32#######")),
    "sortcode": (e.BANK_ROUTING, one_of("20-##-##", "40-##-##", "09-01-##", "30_##_##")),
    "ifsc": (e.BANK_ROUTING, one_of("HDFC000####", r"SBI\N00#####", "ICIC000####")),
    "bsb": (e.BANK_ROUTING, one_of("06#-###", "73#-###")),
    "blz": (e.BANK_ROUTING, one_of("###_###_##", "########")),
    "acct": (e.BANK_ACCOUNT, one_of("########", "##########", "############", "####-####-##", "#########")),
    "ccc": (e.BANK_ACCOUNT, valid(ccc, "####_####_##_##########", "####################")),
    "clabe": (e.BANK_ACCOUNT, one_of("0##18###########0#", "012_180_###########_#")),
    "brconta": (e.BANK_ACCOUNT, one_of("#####-#", "######-#", "##.###-#")),
    # Passports and licences.
    "pass": (e.PASSPORT, one_of("?########", "#########", "??#######", "C##*##T#*", "?#######", "##??#####")),
    "dlus": (e.DRIVER_LICENSE, one_of("?#######", "?###-####-####", "########", "?##-##-####", "?####-#####-#####", "##-###-####")),
    "dlgb": (e.DRIVER_LICENSE, _dl_gb),
    "dleu": (e.DRIVER_LICENSE, one_of("B###**2*I##", "############", "##########", "U1*#######", "???######")),
    # Medicine and insurance.
    "mrn": (e.MEDICAL_ID, one_of("######", "########", r"MR\N-#######", "#-###-###", "H######")),
    "nhs": (e.MEDICAL_ID, valid(nhs, "###_###_####", "##########", "###-###-####")),
    "mbi": (e.MEDICAL_ID, one_of("1EG4-TE#-MK7#", r"2A\N9?G#RX##", "4KJ#-?#1-PQ##")),
    "ohip": (e.MEDICAL_ID, one_of("####-###-###-??", "####_###_###")),
    "utente": (e.MEDICAL_ID, one_of("#########", "###_###_###")),
    "cns": (e.MEDICAL_ID, one_of("7##_####_####_####", "7##############")),
    "patient": (e.MEDICAL_ID, one_of("P-######", "########", "##-####-##", "PAT####*")),
    "kvnr": (e.INSURANCE_ID, one_of("?#########", "?###_###_###")),
    "member": (e.INSURANCE_ID, one_of("???#########", "W#########", "###########-0#", "??####-####", "#########_02")),
    "policy": (e.INSURANCE_ID, one_of("POL-#######", "??-########", "H0-###-####-##", "##########", "?#######-##", "LV_###_####_##")),
    "nuss": (e.NATIONAL_ID, one_of("28/########/##", "08##########", "46_########_##")),
}  # fmt: skip
