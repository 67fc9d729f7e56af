"""The words that name a kind of number, in English, German, French, Spanish and Portuguese.

Each row: entity, the form of the number's letters and digits, and the words as alternatives of a regular expression.
Words are written in lower case without accents, and begin with a plain letter, for they are filed by it; a space stands
for a space, a hyphen, an underscore or a line's end, `\\b` for the end of a word (`_` ends one too).
The same words name fields of JSON, YAML, SQL and CSV: "taxId" is read as "tax id".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from fledge.data.privacy import entities as e
from fledge.data.privacy.word_lists import read_sections

OTHER = "OTHER"  # what is nobody's business: orders, invoices, versions, books
NUMBER = "NUMBER"  # "the number is": of what was spoken of last, a document or a telephone
_NO = (
    r"(?:[\s_-]?(?:numbers?|num\b\.?|nbr\b\.?|no\b\.?|nr\b\.?|n\.?[º°o]\b?\.?|n[º°]|nummern?|numero|id\b|#))?"
)


class Label(NamedTuple):
    """Words that name a kind of value, and the form such a value must have."""

    entity: str
    words: tuple[str, ...]
    value: re.Pattern[str]  # of the value's letters and digits
    # Must stand somewhere in the text (in lower case, without accents)
    context: re.Pattern[str] | None = None


def _label(entity: str, value: str, *words: str, context: str | None = None) -> Label:
    return Label(entity, words, re.compile(value), re.compile(context) if context else None)


# A number follows at once, or after up to three words and a link, or it is the name of a field: "agencia do Itau: 1234".
_LINKS = r"(?:n[°º.o]|num\w*|nr|[:#,(]|e\b|es\b|est\b|ist\b|is\b)"
_NUMBERED = rf"(?=\s?{_LINKS}?\s?\(?\d|(?:\s\w+){{1,3}}\s?{_LINKS}\s?\d|$)"
_PATIENT = (
    r"patient|paciente|\bpat\.|\bpt\b|hospital|hopital|clini[ckq]|klinik|kranken|medic|medec|arzt|doctor|\bdr\b|nurse|diagnos|surgery|praxis|\bgp\b|chirurg|cirug"
    r"|urgenc|consult[ao]|\bsalud\b|\bsaude\b|\bsante\b|health|symptom|sintoma|anamnes|aufnahme"
)

LABELS = (
    _label(
        OTHER,
        r".*",
        r"orders?\b", r"invoices?", r"tracking", r"tickets?\b", r"versions?", r"versao", r"release", r"isbn\S*", r"issn", r"doi\b",
        r"models?\b", r"serial", r"parts?\b", r"article", r"items?\b", r"products?", r"produkt\w*", r"sku", r"batch", r"commit",
        r"pages?\b", r"chapter", r"room\b", r"flight", r"case\b", r"port\b", r"error", r"code\b(?! postal| banque| guichet)", r"bug", r"rfc (?=\d)",
        r"bestell\w*", r"rechnung\w*", r"artikel\w*", r"sendung\w*", r"auftrag\w*", r"seriennummer", r"modell", r"seite\b",
        r"commande", r"facture", r"colis", r"suivi", r"modele", r"reference", r"referenz", r"referencia", r"pedido", r"factura", r"envio", r"fatura",
        r"encomenda", r"modelo", r"articulo", r"artigo", r"protocolo", r"population", r"revenue", r"transaction",
        r"uuid", r"hash", r"checksum", r"timestamp", r"earnings call", r"conference call", r"call (?:stack|me (?:when|if|after|maybe)|back (?:in|if|when))\b", r"routing (?:table|protocol|engine|polic\w+|rules?|layer|key)", r"call(?:ing|s|ed)? (?:the |this |a )?(?:function|method|api|endpoint|script|procedure|it|tool)\b", r"account (?:manager|holder|executive|team|owner|rep)s?\b", r"account[ _-]id\b", r"booking", r"reservation", r"reserva\b",
        r"buchung\w*", r"confirmation", r"coupon", r"voucher", r"gutschein\w*", r"promo\b", r"vorgang\w*", r"aktenzeichen", r"lot\b", r"charge(?:nnummer|n-?nr)",
        r"guia\b", r"rastre\w*", r"seguimiento", r"builds?\b", r"firmware", r"episode", r"lieferschein\w*", r"devis\b", r"presupuesto", r"orcamento", r"serie\b",
        r"sendungs\w*", r"barcode", r"ean\b", r"gtin\b", r"asin\b", r"upc\b", r"pr\b(?= ?#)", r"issue\b", r"jira", r"request[ _-]id\b", r"trace[ _-]id\b", r"session[ _-]id\b",
    ),
    _label(
        e.PASSPORT,
        r"(?=(?:.*\d){4})[A-Z0-9]{6,12}",
        r"passports?(?:nummer)?", r"pass (?=(?:no|nr|nummer|number|hat|lautet)\b)", r"reise ?pas\w*", r"passnummer", r"pas{1,2}-?nr", r"passeports?", r"pasaportes?", r"passaportes?", r"pasap\b",
        r"travel document", r"titre de voyage", r"documento de via[jg]em?", r"passe?p\b",
    ),
    _label(
        e.PASSPORT,
        r"(?=(?:.*\d){4})[A-Z0-9]{6,12}",
        r"doc(?:ument)?\.? (?:number|no|nr)\b",
        context=r"passport|passeport|travel|visa\b|surname|nationality|citizen",
    ),
    _label(
        e.DRIVER_LICENSE,
        r"(?=(?:.*\d){4})[A-Z0-9]{5,18}",
        r"driver'?s?'?s? licen[sc]es?", r"driving licen[sc]es?", r"dl\b", r"licen[sc]e (?:number|no)", r"lic\b(?=\.? ?(?:#|n[or]|num|:))", r"num(?:ero|\.)? de (?:licen[cs]ia|carteira|carta)", r"driver'?s? permit", r"driving permit",
        r"(?:provisional|drivers?) lic\b", r"licen[sc]ia de motorista",
        r"f(?:u|ue)hrerschein\w*", r"fahrerlaubnis\w*", r"lenkerberechtigung", r"fuhrerausweis\w*", r"permis\b(?! de (?:construire|sejour|travail|chasse|peche|louer|amenager|demolir|resid))(?: de conduire| probatoire| moto)?(?: [a-e]{1,2}\b)?", r"licence de conduite",
        r"(?:carnet?|licencia|permiso|registro) (?:de |para )?(?:conduci\w+|conducto\w*|manejo|manejar)", r"carteira (?:nacional )?de (?:motorista|habilitacao|conducao)",
        r"cnh\b", r"carta de conducao", r"titulo de conducao", r"habilitacao", r"brevete", r"numero de permis",
    ),
    _label(
        e.MEDICAL_ID,
        r"(?=(?:.*\d){4})[A-Z0-9]{5,15}",
        r"medical (?:records?|file|chart|card|id)", r"mrn\b", r"pat\.?[ _-]?(?:id|nr|no|num\w*)\b", r"patient(?:en)?[ _-]?(?:id|ident\w*|identifier|number|no|nummer|nr|kennung|chart|file|record|akte)\b", r"health (?:card|record|service|id)s?",
        r"nhs\b", r"chi\b(?= (?:number|no))", r"medicare", r"medicaid", r"health care number", r"ohip", r"phn\b", r"ihi\b", r"mbi\b", r"dossier (?:medical|patient|hospitalier|clinique)", r"histori[ac]l? (?:clinic[ao]|medic[ao])",
        r"prontuario", r"processo (?:clinico|hospitalar)", r"numero de utente", r"n\.?[º°] (?:de |do )?utente", r"cartao (?:nacional de saude|(?:do )?sus|de utente)", r"utente\b", r"nhc\b", r"ipp\b", r"hosp\.?(?:ital)? (?:no|nr|num|number|id)\b", r"cns\b", r"sns\b",
        r"patientenakte\w*", r"krankenakte\w*", r"krankenblatt\w*", r"fallnummer", r"fall-nr", r"aufnahmenummer", r"hospital number", r"tarjeta sanitaria", r"cip\b", r"carte vitale(?= (?:n(?:[°º.]|o\b|um|r\b)|:))", r"cuenta medica", r"expediente (?:clinico|medico)", r"ficha (?:clinica|medica)",
        r"pa[ct]iente?\b(?= (?:n(?:[°º.]|o\b|um|r\b)|#))", r"chart (?:number|no|#)", r"record (?:number|no)\b", r"atendimento(?= (?:n(?:[°º.]|o\b|um|r\b)|:))",
    ),
    _label(
        e.MEDICAL_ID,
        r"(?=(?:.*\d){4})[A-Z0-9]{5,15}",
        r"(?:numero|n\.?[º°o]) (?:de |du |do )?(?:dossier|expediente|processo|ficha|historia|registro|sejour|admission)", r"dossier(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|[a-z]{0,3}-?\d))", r"aktennummer", r"akten-nr", r"akte\b", r"kartei\w*", r"file (?:number|no)", r"hist\.? ?clin\w*\.?",
        r"h\.? ?c\.?(?= (?:n(?:[°º.]|o\b|um|r\b)|:|\d))", r"chart", r"expediente", r"ficha(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:))", r"identifiant patient", r"admission (?:number|no|id)", r"id (?=pa[ct]ient)", r"registro(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:))", r"case (?:number|no)",
        context=_PATIENT,
    ),
    _label(
        e.INSURANCE_ID,
        r"(?=(?:.*\d){4})[A-Z0-9]{5,16}",
        r"insurance", r"policy(?=\s?(?:[a-z]{0,3}[ -]?\d|number|no|nr|id|#|:|is|with|held|holder))", r"member(?:ship)?[ _-]?(?:id|number|no)\b", r"subscriber", r"group (?:number|no|id)\b(?=.{0,3}\d)", r"claim (?:number|no|id)\b",
        r"versicherten\w*", r"krankenversicherung\w*", r"krankenkasse\w*", r"versicherungs?\w*", r"police\b(?=\s?(?:n(?:[°º.]|o\b|um|r\b)|:))", r"versichert(?= (?:unter|mit|bei))", r"mitglieds\w*", r"schaden(?:nummer|-nr)", r"gesundheitskarte", r"egk\b", r"vers\.?-? ?nr",
        r"kvnr", r"kv-?(?:nr|nummer)", r"(?:n[º°]|numero) d.assuree?", r"assuree?(?= ?(?:n(?:[°º.]|o\b|um)|:))", r"(?:kranken|lebens|haftpflicht|kfz-?|auto|hausrat|unfall)(?:versicher|kassen)\w*", r"assurances?\b", r"mutuelle", r"numero d.adherent", r"adherent(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:))", r"numero de sinistre", r"seguro(?! social)s?\b", r"poliza", r"apolice", r"policen?-?(?:nummer|nr)", r"contrat d'assurance",
        r"asegurad[oa]", r"segurad[oa]", r"afiliad[oa]", r"num(?:ero|\.)? de (?:afiliacion|socio|asociado)", r"carteirinha", r"beneficiari[oa]", r"plano de saude", r"convenio(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:))", r"obra social", r"sinistro", r"siniestro", r"matricula d[oa] plano", r"assureurs?\b", r"sinistre(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:))", r"police (?:d.assurance|auto|habitation|multirisque)", r"tiers payant", r"prevoyance", r"sociétaire", r"societaire",
    ),
    _label(
        e.INSURANCE_ID,
        r"(?=(?:.*\d){4})[A-Z0-9]{5,16}",
        r"(?:numero|n[º°]) (?:de |du |do )?(?:contrat\w*|matricula)", r"contrat(?= ?(?:n(?:[°º.]|o\b|um)|habitation|auto))(?: habitation| auto)?", r"vertrags?(?:nummer|-?nr)", r"contract (?:number|no)", r"matricula", r"vertrag\b(?= nr)",
        context=r"assur|mutuelle|segur[oa]|insur|versicher|apolice|poliza|plano|unimed|convenio|sinist",
    ),
    _label(
        e.BANK_ROUTING,
        r"\d{6}|\d{8}|\d{9}|[A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?",
        r"routing", r"aba\b", r"rtn\b", r"sort ?code", r"s/c\b", r"blz\b", r"bankleitzahl", r"bsb\b",
        r"(?:numero|codigo) de ruta", r"(?:numero|codigo) de roteamento", r"(?:numero|code) d.acheminement", r"swift\b(?!\s?(?:ui|\d\.))(?:[/ ]bic\b)?(?:[ _-]?code)?", r"bic\b(?:[/ ]swift\b)?(?:[ _-]?code)?", r"bank code", r"bankcode", r"codigo (?:swift|bic|del banco|do banco)", r"clearing", r"ifsc(?: code)?",
    ),
    _label(
        e.BANK_ROUTING,
        r"\d{3,6}[\dXK]?",
        r"agencia(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|\(|#|e\b|\d|bancaria))(?: bancaria)?", r"ag\b(?=\.? ?:? ?\d)", r"institution (?:number|no)", r"branch (?:number|no|code)", r"code (?:banque|guichet|agence)", r"guichet", r"sucursal(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|\d))", r"oficina bancaria", r"balcao(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|\d))", r"filialnummer",
    ),
    _label(e.BANK_ROUTING, r"\d{3,9}", r"transit\b(?! (?:time|visa|system|station|agency|gateway))", r"(?:numero|no) d'institution"),
    _label(
        e.BANK_ROUTING,
        r"\d{3,6}[\dXK]?",
        rf"agencias?\b{_NUMBERED}", rf"sucursal\b{_NUMBERED}", rf"oficina\b{_NUMBERED}", rf"balcao\b{_NUMBERED}", rf"succursale\b{_NUMBERED}", rf"agence\b{_NUMBERED}", rf"filiale?\b{_NUMBERED}",
        r"codigo de (?:la )?(?:entidad|sucursal|oficina|agencia)", r"code (?:de l')?(?:etablissement|agence)",
        context=r"\bbanc[ao]\b|bancari|\bcuentas?\b|\bcontas?\b|banque|bancaire|\bcompte\b|\bkonto|\bbank|\biban\b|\bpix\b|\bted\b|virement|transferencia|\brib\b",
    ),
    _label(
        e.BANK_ACCOUNT,
        r"[A-Z]{0,4}\d{5,24}[A-Z0-9]{0,12}",
        r"(?:bank |checking |savings |current |chequing |deposit )?accounts?\b", r"bank acc?\b", r"acct\b", r"a/c\b", r"konto\w*", r"(?:giro|spar|bank|gehalts|haupt)konto\w*", r"kto\b", r"rib\b",
        r"depotnummer", r"clabe\b", r"compte\b", r"cuenta\b", r"cta\b", r"contas?\b(?: corrente| bancaria| poupanca| salario)?", r"nib\b", r"ccc\b", r"cbu\b", r"cvu\b",
        r"bban\b", r"acc\b", r"poupanca(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|\d))", r"chave pix", r"pix\b", r"(?:savings|checking)\b(?= ?(?:n(?:[°º.]|o\b|um)|#|:|\d))", r"(?:empfanger|ziel|gegen|referenz|verrechnungs|haupt|gemeinschafts|firmen)konto\w*", r"c/c\b",
    ),
    _label(e.IBAN_CODE, r"[A-Z]{2}\d{2}[A-Z0-9]{8,30}", r"iban\b"),
    _label(
        e.CREDIT_CARD,
        r"\d{12,19}",
        r"(?:credit|debit|bank|visa|master|gift|prepaid)[ _-]?cards?", r"card (?:number|no|num)", r"cc (?=n|:|#)", r"kreditkarte\w*", r"(?:debit|giro|ec-?)karte\w*", r"kartennummer", r"karten?-?nr", r"karte\b",
        r"carte(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|\d))", r"numero de carte", r"carte (?:bancaire|bleue|de credit|de debit|visa|bleu)", r"cb\b", r"tarjetas?\b(?! sanitaria)(?: de (?:credito|debito))?", r"cartao(?! d[eo] cidad)(?: de (?:credito|debito))?",
        r"visa\b", r"mastercard", r"amex\b", r"american express", r"discover\b", r"maestro\b", r"cards?\b", r"plastico",
    ),
    _label(
        e.TAX_ID,
        r"(?=(?:.*\d){6})[A-Z0-9]{8,15}",
        r"tax\b(?: payer| file| reference)?(?: identification| reference)?", r"taxpayer(?: id\w*)?", r"tin\b", r"ein\b(?=_|$|[\s:#]{1,3}(?:number|no\b|is\b|of\b|for\b|#|\d\d-\d))", r"fein\b", r"itin\b", r"atin\b", r"tfn\b", r"utr\b", r"vat\b", r"abn\b", r"gst(?:in)?\b", r"paye\b", r"employer identification", r"federal (?:tax )?id\b", r"business number",
        r"steuer-?\s?id\w*", r"steuer-?\s?nummer", r"steuerliche\w*", r"st\.?-?nr", r"steuernr", r"nipc\b", r"nie?f\b(?=[ :])", r"steueridentifikationsnummer", r"idnr", r"ident-?nr", r"ust\.?[ _-]?id\S*", r"umsatzsteuer\w*", r"mwst-?nr", r"numero fiscal(?:e)?(?: de reference)?", r"uid\b(?=[ :-]{0,2}(?:atu|che))", r"steuerident\w*", r"tin-?nummer",
        r"n[º°] fiscal", r"identifiant fiscal", r"reference fiscale", r"avis d'impot", r"spi\b", r"(?:n[º°] |numero )?tva\b(?: intra\w*)?", r"cif\b", r"nif\b", r"contribuinte", r"contribuyente", r"cnpj\b", r"rfc\b(?! \d)", r"cuit\b", r"cuil\b", r"ruc\b", r"nit\b(?=[ :#]|$)", r"rif\b",
        r"identifica(?:cion|cao) fiscal", r"cedula (?:de identificacion )?(?:fiscal|tributaria)", r"pan\b(?= ?(?:card|number|no|:|is))(?: card)?", r"pan\b(?=_|$)", r"steuer-?nr", r"siren\b", r"siret\b", r"p\.? ?iva\b", r"partita iva", r"inscricao (?:estadual|municipal)", r"numero de identificacao fiscal",
    ),
    _label(
        e.NATIONAL_ID,
        r"(?=(?:.*\d){5})[A-Z0-9]{7,18}",
        r"social security", r"soc\.? ?sec\.?", r"ssn\b", r"ss#", r"social insurance", r"(?:my|his|her|their|your) social\b(?! [a-z]{3})", r"ni (?:number|no)\b", r"nat(?:ional|l)?\.? ?(?:id|ins|insurance|identity|identification)\S*", r"nino\b", r"id ?cards?", r"identification (?:number|card|no)", r"identity (?:number|document|no|card)",
        r"citizen(?:ship)? (?:card|id|number)", r"residen(?:t|ce) (?:permit|card)", r"green card", r"alien (?:registration )?number", r"a-number", r"government id", r"photo id\b", r"state id\b", r"voter id", r"personalausweis\w*", r"perso\b", r"ausweis\w*", r"sozialversicherung\w*", r"sv-?(?:nr|nummer)", r"svnr\b", r"rentenversicherung\w*", r"rv-?nr", r"rvnr\b", r"aufenthaltstitel\w*",
        r"(?:numero de )?secu\b", r"num secu", r"securite sociale", r"nss\b", r"nir\b", r"insee\b", r"carte (?:nationale )?d.identite", r"carte de sejour", r"titre de sejour", r"piece d.identite", r"cni\b", r"dni\b", r"d\.n\.i\.?", r"nie\b", r"cedulas?\b(?: de (?:ciudadania|identidad|extranjeria))?", r"c\.c\.(?= ?\d)", r"rut\b", r"run\b(?=[ :#]{1,3}\d{1,2}\.?\d{3}\.?\d{3}-)", r"ine\b(?=[ :#]|$)", r"clave (?:de elector|unica)",
        r"documento (?:nacional )?de identi\w*", r"documento(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|\d))", r"seguridad social", r"seguro social", r"num(?:ero|\.)? de (?:seguridad|afiliacion) social", r"cpf\b", r"rg\b", r"cartao (?:de|do) cidadao", r"cc\b(?= ?(?:n\.?[º°]|\d{8} ?\d))", r"registro geral", r"titulo de eleitor", r"pis(?:/pasep)?\b(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|\d))", r"nis\b(?= ?(?:n(?:[°º.]|o\b|um|r\b)|:|\d))",
        r"bilhete de identidade", r"bi(?:/cc)?\b(?= n(?:[°º.]|o\b|um|r\b))", r"seguranca social", r"niss\b", r"curp\b", r"aadhaa?r", r"sin\b(?=(?: ?(?:#|no\.?|number|is))?[:\s]{1,2}\d{3}|_|$)", r"bsn\b", r"pesel\b",
        r"pps(?:n| ?no\b| number)?\b", r"nric\b", r"hkid\b", r"emirates id", r"id (?:number|no)\b(?<!\w id number)(?<!\w id no)", r"(?:my|his|her|their) id (?:number|no|#)", r"avs\b", r"numero d.identite", r"codice fiscale", r"(?:registre|numero|registro|identifiant) nationale?l?\b", r"registro nacional", r"rijksregister\w*", r"nationalregister\w*", r"personnummer", r"personal (?:number|identity|identification)", r"ahv\b", r"identidade", r"burgerservicenummer", r"nss\b",
    ),
    _label(
        e.PHONE_NUMBER,
        r"\+?\d{7,15}(?:X\d{1,6})?",
        r"(?:tele)?phones?", r"tel\b", r"mobile\b", r"cell(?:phone)?\b", r"call(?:ing|ed)?\b", r"dial\b", r"text(?: me|ing)?\b(?= (?:me|him|her|us|them|at|on)\b)", r"texted",
        r"fax\b", r"whats?app", r"telegram", r"signal\b", r"sms\b", r"reach (?:me|us|him|her|them|\w+ (?:at|on))", r"hotline", r"contact(?: me| us| number)", r"let (?:me|us|him|her) know", r"ring (?:me|him|her|us|them|\w+ on)", r"phone(?:d|s)", r"notify", r"landline", r"voicemail", r"pager", r"localiza\w*", r"estoy en(?= el)", r"atend[oe]\w* (?:no|pelo)", r"estou no", r"i'm on", r"(?:bin|sind) unter", r"suis au",
        r"tele?fon\w*", r"handy\w*", r"mobil\w*", r"rufnummer\w*", r"(?:an)?rufen?\b", r"ruf\b", r"ruft\b", r"erreichbar", r"erreich(?:en|t|e)\b", r"durchwahl", r"festnetz", r"melde[nt]?\b", r"benachrichtig\w*", r"verstandig\w*", r"anruf\b", r"geben sie", r"sagen sie",
        r"telephon\w*", r"tel\b", r"fon\b", r"tlf\b", r"tlfno?\b", r"telf\b", r"telm\b", r"portable", r"appele[rz]", r"appelle", r"joindre", r"joignable", r"telefonos?", r"movil", r"celular\w*", r"fixe\b", r"prevene[zr]", r"prevenir", r"contacte[rz]", r"rappele[rz]", r"mobile", r"avise[rz]?\b", r"avis(?:ar|e|em|en|ad|ame|enme)\b", r"comuni[cq]\w+",
        r"ll?am(?:ar|e|en|ame|eme|adme|anos|enos|enme|adnos)\b", r"telefone", r"telemovel", r"ligar?\b", r"ligu(?:e|em)(?:-\w{1,3})?", r"zap\b", r"wpp\b", r"fone\b", r"contact\w{1,3}(?:-me)?\b", r"contat\w+(?:-me)?", r"fal(?:ar|e|em) com", r"marque(?= (?:el|al))",
        r"(?:my|meine?|mi|meu|mon) num(?:ber|mer|ero)?(?!\w| (?:fiscal|de\b|d[aeo]s?\b|d'|of\b|social|client|nation|nacional|avs\b|ahv\b|ss\b|secu|insee|niss?\b|nir\b|steuer|tax\b|id\b|passport|patient|insurance|policy|personnel|etranger))", r"(?:new|old|other|neue|alte|nouveau|nuevo|novo) (?:number|nummer|num(?:ero)?)\b", r"(?:num(?:ero)?|number|nummer)(?=[ :.,]{1,3}(?:ahora|agora|now|jetzt|maintenant))",
        r"(?:chang\w*|troqu\w*|cambi\w*|mud\w*|gewechselt\w*) (?:de |my |meine )?num(?:ero|ber|mer)?\b",
    ),
    _label(NUMBER, r".*", r"numbers?\b", r"nummern?\b", r"num(?:ero)?\b", r"no\b(?=[.:]? ?\d|\. ?[a-z]{1,3}\d)", r"nr\b", r"n\.?[º°]"),
)  # fmt: skip

_ACCENTS = str.maketrans("àáâãäåçèéêëìíîïñòóôõöùúûüýÿ’", "aaaaaaceeeeiiiinooooouuuuyy'")


@lru_cache(maxsize=8)
def fold(lower: str) -> str:
    """Lower-case text without its accents, of the same length: people leave them out."""
    return lower if lower.isascii() else lower.translate(_ACCENTS)


def _compiled() -> re.Pattern[str]:
    """One regular expression for all rows. Alternatives stand under their first letter, so that most are never tried."""
    filed: dict[str, dict[int, list[str]]] = {}
    for row, branch in _branches():
        filed.setdefault(branch[0], {}).setdefault(row, []).append(branch[1:])
    letters = []
    for letter, rows in sorted(filed.items()):
        inner = "|".join(
            rf"(?P<{letter}{row}>(?:{'|'.join(rest)}){_NO if LABELS[row].entity != NUMBER else ''})"
            for row, rest in rows.items()
        )
        letters.append(f"{letter}(?:{inner})")
    pattern = "|".join(letters).replace(r"\b", r"(?![^\W_])")
    pattern = re.sub(r"(?<=[\w)?}*]) (?=[\w(])", r"[\\s_-]", pattern)
    return re.compile(
        rf"(?<![^\W_])(?<!@)(?:{pattern})(?!\w*(?:@|\.[a-z])|_(?:type|count|rate|status|hash|len|format|name|date))"
    )


def _branches() -> Iterator[tuple[int, str]]:
    """The words, each with the number of its row, so that all begin with a plain letter."""
    for row, label in enumerate(LABELS):
        for word in label.words:
            yield from ((row, branch) for branch in ([word] if word[0].isalnum() else _spelled(word)))
            acronym = re.match(r"[a-z]{3,5}(?=\\b)", word)  # N.I.F.
            if acronym and label.entity not in (OTHER, NUMBER):
                yield row, r"\.".join(acronym[0]) + r"\b\.?" + word[acronym.end() + 2 :]


def _spelled(word: str) -> list[str]:
    """ "(?:a|b)c" as "ac" and "bc"; an optional group also as nothing."""
    depth, end = 0, 0
    for end, character in enumerate(word):  # noqa: B007
        depth += (character == "(") - (character == ")")
        if depth == 0:
            break
    inner, rest = word[3:end], word[end + 1 :]
    optional = rest.startswith("?")
    rest = rest.removeprefix("?")
    parts, depth, start = [], 0, 0
    for place, character in enumerate(inner):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            parts.append(inner[start:place])
            start = place + 1
    parts.append(inner[start:])
    spelled = [part + rest for part in parts if part] + ([rest] if optional or "" in parts else [])
    return [one for branch in spelled for one in ([branch] if branch[0].isalnum() else _spelled(branch))]


_LABEL = _compiled()


def labels_in(folded: str, start: int, end: int) -> Iterator[tuple[int, int, Label]]:
    """Where labels stand in a part of a folded text, and whose they are."""
    for match in _LABEL.finditer(folded, start, end):
        yield match.start(), match.end(), LABELS[int((match.lastgroup or "x0")[1:])]


def label_at(folded: str, start: int) -> Label | None:
    """The label that begins there."""
    match = _LABEL.match(folded, start)
    return LABELS[int((match.lastgroup or "x0")[1:])] if match else None


_NO_FIELD = read_sections("field_keys")["about_a_number"]
_CAMEL = re.compile(r"(?<=[a-zß-ÿ0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@lru_cache(maxsize=4096)
def field_words(name: str) -> str:
    """The words of a field's name, folded: "taxId" is "tax id"."""
    return " ".join(word for word in re.split(r"[\W_]+", fold(_CAMEL.sub(" ", name).lower())) if word)


@lru_cache(maxsize=4096)
def field_label(name: str) -> Label | None:
    """The label a field's name holds: taxId, EMPLOYER_EIN, "n. de passeport"; the last one if it holds several."""
    text = field_words(name)
    if not text or _NO_FIELD.intersection(text.split()):
        return None
    found = None
    for _, _, label in labels_in(text, 0, len(text)):
        if label.entity != NUMBER:
            found = label
    return None if found is None or found.entity == OTHER else found
