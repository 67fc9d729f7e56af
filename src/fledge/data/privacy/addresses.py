"""Street addresses in the conventions of five languages, with flat, postal code and town if they follow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.lexicon import lexicon

_CAP = rf"[{UPPER}][^\W\d_]*(?:['’.-][^\W\d_]+)*\.?"
_NUMBER = r"\d{1,5}(?:[ -]?(?:[a-zA-Z]|bis|ter))?(?:[-/]\d{1,4}[a-z]?)?"
_ENGLISH = (
    r"street|st|avenue|ave?|road|rd|lane|ln|drive|dr|boulevard|blvd|court|ct|place|pl|terrace|ter|way|circle|cir|trail|trl|parkway|pkwy|highway|hwy|square|sq|close|crescent|grove|gardens?|mews"
    r"|row|walk|hill|rise|green|view|park|plaza|loop|alley|path|pike|turnpike|crossing|ridge|run|bypass|causeway|estates?|extension|fields?|ford|forest|fork|forks|freeway|glen|grove|harbor|haven|heights|hollow|island|isle|junction|key|keys|knoll|lake|land|lodge|mall|manor|meadows?|mill|mills|mission|motorway|mount|mountain|neck|orchard|oval|overpass|pass|passage|pine|pines|plain|plains|point|points|port|ports|prairie|radial|ramp|ranch|rapids?|rest|ridges|river|roads|route|rue|shoals?|shores?|skyway|spring|springs|spurs?|squares?|station|stravenue|stream|streets?|summit|throughway|trace|track|trafficway|fords|fort|forges?|tunnel|union|unions|valley|valleys|via|viaduct|village|ville|vista|walks?|wall|ways|wells?|bend|branch|bridge|brook|burg|camp|canyon|cape|center|centre|cliff|club|common|corner|corners|course|cove|creek|crest|dale|dam|divide|falls|ferry|flat|flats|garden|gateway"
    r"|courts|centers|brooks|burgs|parade|esplanade|quays?|highroad|promenade|hills|vale|drives|greens|groves|lakes|parks|views|villages|parkways|extensions|harbors|islands|junctions|knolls|manors"
    r"|mountains|coves|circles|cliffs|glens|wynd|approach|yard|wharf|croft|paddock|brae|broadway|arcade|copse|dell|fairway|laneway|walkway|strand|circuit|circus|crossroad|expressway|nagar|marg|zila|ganj|chowk|colony|enclave"
)
_FLAT_EN = r"(?:,? (?:apt|apartment|suite|ste|unit|flat|room|floor|Apt|Apartment|Suite|Ste|Unit|Flat|Room|Floor|#)\.? ?#?\w{1,6})"
_UNIT = (
    r"(?:[ ,]{1,3}(?:Edif|Depto|Interior|Int|Apto|Apt|Bloque|Piso|Puerta|andar|sala|bloco)\.? ?\d{1,4}\w?)"
)
_TOWN = rf"{_CAP}(?:[ -](?:(?:de la|de las|de los|de|da|do|dos|das|del|la|le|los|las|sur|sous|an der|am|im|upon|y) ?)*{_CAP}){{0,3}}"
_CODE = (
    r"(?:[A-Z]-)?(?:[A-Z]\d[A-Z] ?\d[A-Z]\d|\d{5}(?:-\d{3,4})?|\d{8}|\d{4}-\d{3}|\d{4}(?= [A-ZÀ-Þ]))(?!\d)"
)
# The codes of the USA, Great Britain, Canada, and, behind a state, Australia.
_CODE_EN = r"(?:\d{5}(?:-\d{4})?|[A-Z]{1,2}\d[\dA-Z]? ?\d[A-Z]{2}|[A-Z]\d[A-Z] ?\d[A-Z]\d|(?<=NSW |VIC |QLD |TAS |ACT )\d{4}|(?<=NSW, |VIC, |QLD, |TAS, |ACT, )\d{4}|(?<=SA |WA |NT )\d{4}|(?<=SA, |WA, |NT, )\d{4})"
_TAIL_EN = rf"(?:(?:,?\s{{1,2}}{_TOWN})?(?:,? [A-Z]{{2,3}})?(?:,? {_CODE_EN})(?!\w))"
_BEFORE_EN = r"(?:(?:(?:Apt|Apartment|Suite|Ste|Unit|Flat|Level|Studio|Shop)\.? ?\d{1,4}\w?,?\s)|(?:Unit|Flat|Apt|Shop) (?=\d{1,4}/\d))?"
# ", 80331 München", ", Liberdade, 20818-468 Cunha / RN", ", Nueva Niger, CHIS 38268"
_GERMAN_ENDS = (
    r"platz|berg|bach|tor|wald|see|park|markt|hof|feld|felde|wiese|wiesen|garten|gärten|schleuse|mühle|kirche|brücke|teich|anger|linden|eichen|buchen|birken|tannen|ulmen|weiden|hang|rain|kamp|wehr"
    r"|bahnhof|schloss|rathaus|brunnen|turm|dom|aue|winkel|busch|heide|moor|hafen|kanal|stadion|friedhof|deich|stein|grund|quelle|mauer|burg|halde|höhe|leite|kreuz|rosen|ried|zeile|tal"
)
_TAIL_CODE = rf"(?:(?:, {_TOWN})?(?:, [A-Z]{{2,5}}\.?)?,?\s{{1,2}}{_CODE}(?:,? (?!Mi |Tel|Tél|Mein|O |E |Y ){_TOWN}(?<!\.)(?: ?/ ?[A-Z]{{2}})?)?)"
_FRENCH = "rue|avenue|av.|boulevard|bd|place|chemin|impasse|allée|allee|quai|cours|route|passage|square|faubourg|villa|ruelle|sentier|venelle|montée|traverse|esplanade|promenade|cité|clos|hameau|lotissement|résidence|voie|mail"
_FRENCH_KINDS = _FRENCH.replace("av.", r"av\.")
_IBERIAN = (
    r"calle|c/|bulevar|blv\.?|blvd\.?|cerrada|privada|periférico|circunvalación|corredor|diagonal|eje vial|peatonal"
    r"|prolongación|retorno|viaducto|boulevard|calzada|andador|circuito|continuación|ampliación|avenida|avda\.?|av\."
    r"|plazuela|plaza|pza\.|praceta|calçada|rotunda|azinhaga|costanilla|polígono|paseo|camino|carretera|ronda|glorieta"
    r"|vía|via|cuesta|rambla|pasaje|callejón|travesía|alameda|cañada|acceso|urbanización|corrada|vial|pasadizo|rua|r\."
    r"|travessa|praça|largo|estrada|rodovia|beco|ladeira|avenida|av|alameda|viela|quinta|aeroporto|área|campo|chácara"
    r"|colônia|condomínio|conjunto|distrito|esplanada|estação|favela|fazenda|feira|jardim|lago|lagoa|loteamento|morro"
    r"|núcleo|parque|passarela|pátio|recanto|residencial|setor|sítio|trecho|trevo|vale|vereda|viaduto|vila|praia|ponte"
    r"|vereda|via"
)
# Each with what a text in lower case must hold, one of these at least, for the pattern to be worth a try.
_PATTERNS = tuple(
    (needs.split("|"), re.compile(pattern))
    for needs, pattern in (
        # 221B Baker Street, Flat 2, London NW1 6XE
        ("",
         rf"(?<![\w.,$€£-]){_BEFORE_EN}\d{{1,6}}(?:[A-Za-z]|[/-]\d{{1,4}})?(?:,? |(?<=/\d\d)\s)(?:(?:North|South|East|West|[NSEW]\.?) )?(?:\d{{1,3}}(?:st|nd|rd|th)|{_CAP})(?: {_CAP}){{0,3}}? (?i:{_ENGLISH})(?![\w'’])\.?"
         rf"(?: (?:North|South|East|West|[NSEW]{{1,2}})(?!\w))?{_FLAT_EN}?{_TAIL_EN}?"),
        # any number and capitals that a town and a postal code follow
        ("",
         rf"(?<![\w.,$€£-])\d{{1,5}}[A-Za-z]? {_CAP}(?: {_CAP}){{0,2}}, {_TOWN},? (?:[A-Z]{{2}} \d{{5}}|[A-Z]{{1,2}}\d[\dA-Z]? ?\d[A-Z]{{2}})(?!\w)"),
        ("unit |flat |apartment |suite |studio ",
         rf"(?<!\w)(?:Unit|Flat|Apartment|Suite|Studio) \d{{1,4}}\w?,? (?:\d{{1,5}} )?{_CAP}(?: {_CAP}){{0,3}}{_TAIL_EN}"),
        # H.No. 41, Dutta Street; Plot No. 32, Sector 18
        ("h. no|h.no|h no|hno|house no|plot|door no|flat no|shop no",
         rf"(?<!\w)(?:H\.? ?No|House No|Plot No|Door No|Flat No|Shop No|Plot)\.? ?\d{{1,4}}[\w/-]{{0,6}},? {_CAP}(?: {_CAP}){{0,3}}(?: \d{{1,3}}(?!\d))?"),
        ("box|usn|usc|usg|uss",
         r"(?<!\w)(?:P\.? ?O\.? Box \d{1,6}|(?:PSC|Unit) \d{3,5},? Box \d{3,5}|USNS? \w+|USC?G?[SC] \w+)(?:,? (?:[AFD]PO) A[AEP] \d{5})?"),
        # Hauptstraße 12a, 80331 München; Am Alten Markt 3
        ("straße|strasse|str.|weg|platz|allee|gasse|ring|damm|ufer|chaussee|stieg|steig|graben",
         rf"(?<!\w)(?:{_CAP}[ -]){{0,3}}?[{UPPER}]?[^\W\d_]*(?:straße|strasse|str\.|weg|platz|allee|gasse|ring|damm|ufer|chaussee|stieg|steig|graben|Straße|Strasse|Str\.|Weg|Platz|Allee|Ring|Damm|Gasse|Ufer) {_NUMBER}(?!\w|[.,]\d){_TAIL_CODE}?"),
        ("am |an de|auf de|im |in der |zum |zur |unter de|hinter der |beim ",
         rf"(?<!\w)(?:Am|An der|An den|Auf der|Auf dem|Im|In der|Zum|Zur|Unter den|Unter der|Hinter der|Beim) (?:{_CAP} ?){{1,2}}(?<= ){_NUMBER},? \d{{4,5}}(?: {_CAP}(?:[ -]{_CAP}){{0,2}})?"),
        ("postfach|postale|apartado|apdo|caixa postal|casilla de|casilla postal",
         rf"(?<!\w)(?i:postfach|boîte postale|apartado(?: de correos| postal)?|apdo\.?(?: de correos)?|caixa postal|casilla (?:de correo|postal))(?: (?:n\.? ?[º°]|nr\.|no\.))? \d{{1,3}}(?: ?\d{{2,3}}){{0,2}}(?!\d){_TAIL_CODE}?"),
        # 12 bis, rue de la Paix, 75002 Paris
        (_FRENCH,
         rf"(?<![\w.,])(?:{_NUMBER},? )?(?i:{_FRENCH_KINDS})(?: (?:de la|de l['’]|du|des|de|le|la|les|aux?|d['’]))?[ ’']? ?{_CAP}(?:[ -](?:(?:de la|du|des|de|et) )?{_CAP}){{0,3}}(?<!\.)(?:(?:,? (?:[nN][º°o]\.? ?)?\d{{1,4}}(?:[ -]?(?:[a-z]|bis|ter)(?!\w))?(?![\w%]|[.,]\d|\s[€$%]))?{_TAIL_CODE}|,? (?:[nN][º°o]\.? ?)?\d{{1,4}}(?![\w%]|[.,]\d|\s[€$%]))"),
        (_FRENCH,
         rf"(?<![\w.,]){_NUMBER},? (?i:{_FRENCH_KINDS})(?: (?:de la|de l['’]|du|des|de|le|la|les|aux?|d['’]))?[ ’']? ?[^\W\d_]+(?:[ -](?:(?:de la|du|des|de|et) )?{_CAP}){{0,3}}"),
        # Calle de Alcalá 45, 3º B, 28014 Madrid; Rua Augusta, 1500
        ("",
         rf"(?<!\w)(?i:{_IBERIAN})"
         rf" ?(?:(?:de la|de las|de los|de|del|do|da|dos|das|la|el|los) ){{0,2}}(?:\d{{1,2}} de )?{_CAP}(?: (?:(?:de la|de los|de|del|do|da|dos|das|y|e) ){{0,2}}{_CAP}(?![º°])){{0,4}}(?:,? (?:[nN](?:\.? ?[º°]|o)\.? ?|# ?|número )?\d{{1,5}}(?!\d|[.,]\d)|,? [sS]/[nN](?!\w))?{_UNIT}*(?:,? (?:piso |apto\.? |apartamento |puerta |bloque |andar |ap\. )?\d{{1,4}}\.?[ºª°]? ?(?:[A-Z]|[iI]zq|[dD]cha|[dD]to|[eE]sq|[fF]te)?(?!\w))?{_TAIL_CODE}?"),
        # C. Alicia Pastor 20
        ("c. ",
         rf"(?<!\w)(?<!\. )C\. (?:(?:de la|del|de|la) )?{_CAP}(?: (?:(?:de la|de los|del|de|y) )?{_CAP}){{0,4}},? \d{{1,3}}(?!\d|[.,]\d){_UNIT}*{_TAIL_CODE}?"),
        # Calle 45 # 12-30 Sur, Cra. 7 No. 71-21
        ("#|no.|no |nº|n°|carrera |cra",
         rf"(?<!\w)(?i:calle|carrera|cl|cra?|kr|avenida|av|transversal|tv|diagonal|dg)\.?(?: (?i:calle|carrera))? \d{{1,3}}\w?ª?(?: ?(?i:bis|sur|norte|este|oeste))? (?:#|[nN]o\.?|[nN]\.?[°º]\.?|(?<=\d )(?=\d{{1,3}}(?:[-–]|\W|$))) ?\d{{1,3}}\w?(?: ?[-–] ?\d{{1,3}})?(?: (?i:sur|norte|este|oeste))?(?!\w)"
         rf"(?:,? (?:Bodega|Etapa|Torre|[Aa]partamento|Apto\.?|Casa|Oficina|Interior|Bloque|[Pp]iso)[ \w]{{0,24}})?(?:,?\s\d{{6}})?(?:,?\s(?={_CAP},){_TOWN}(?:, {_CAP}(?: {_CAP})?)?)?"),
    )
)  # fmt: skip
# Unter den Eichen 8, An der Mühle 12b: without a code only before what streets are called after
_GERMAN_BARE = re.compile(
    rf"(?<!\w)(?i:am|an der|an den|auf der|auf dem|im|in der|in den|zum|zur|unter den|unter der|hinter der|hinter dem|beim|vor dem)(?: {_CAP})?? [{UPPER}]?[^\W\d_]*(?i:{_GERMAN_ENDS}) \d{{1,3}}(?: ?[a-h])?(?![\w%€°/]|-\d|[.,:]\d|\. [A-ZÄÖÜ][a-zä]|\s(?:uhr|Uhr|Tage|Jahre|Euro|Prozent|Minuten|Stunden|Meter|Kilometer|[Kk]m|Leute|Personen|Kinder|Menschen|Bäume|Mal|mal)(?!\w)){_TAIL_CODE}?"
)
_INSIDE = re.compile(r"(?i:im|in der|in den) [^\W\d_]{2,6} \d")  # im Hof 2 Stühle
_TOWN_AFTER = re.compile(rf", ({_CAP}(?:[ -]{_CAP}){{0,2}})")
# A title in capitals, not an address: "5 Miles Through The Park".
_HEADLINE = re.compile(
    r"^\d+ (?:Things|Ways|Steps|Tips|Reasons|Miles|Best|Great|New|Top|Years|Days)\b|\b(?:Through|And|With|For) |[.] (?:Das|Die|Der|The|Le|La|El) "
)
_LOWER_KINDS = (
    "street", "road", "avenue", " ave", " lane", "straße", "strasse", "str. ", "weg ", "gasse ", "allee ", "platz ", "calle ",
    "avenida ", "plaza ", "rua ", "travessa ", "praça ", "rue ", "chemin ", "allée ", "impasse ",
)  # fmt: skip
# "i live at 14 maple road", "hauptstraße 3": in lower case, with the number on its side and nothing counted after it
_LOWER = re.compile(
    r"(?<![\w.,])(?:(?<=at )|(?<=is )|(?<=to )|(?<=@ ))\d{1,5}[a-z]? [a-z]{3,14}(?: [a-z]{3,14})? (?:street|st|road|rd|avenue|ave|lane|drive|court|crescent|close|boulevard|blvd)(?![\w'’])(?:,? (?:apt|flat|unit)\.? ?\w{1,4}(?!\w))?"
    r"|(?<!\w)[a-zäöüß]{3,20}(?:straße|strasse|str\.|weg|gasse|allee|platz) \d{1,3}(?: ?[a-h])?(?!\w|[.,:]\d| [A-ZÄÖÜa-zäöü]{3}\w* ?\d)(?=\s*(?:[,.;!?)\n]|$|in |und |bei ))"
    r"|(?<!\w)(?:calle|avenida|plaza|paseo|rua|travessa|praça) (?:(?:de la|de los|del|de|da|do|dos|das) )?[a-zà-ÿ]{3,15}(?: [a-zà-ÿ]{2,15}){0,2},? (?:número |n\.? ?º ?)?\d{1,4}(?!\w)(?=\s*(?:[,.;!?)\n]|$|en |em |y |e ))"
    r"|(?<![\w.,])\d{1,3}(?: bis| ter)?,? (?:rue|chemin|allée|impasse|avenue|boulevard) (?:(?:de la|du|des|de|d['’]|de l['’]) ?)?[a-zà-ÿ]{3,15}(?!\w)"
)


def find_street_addresses(clues: Clues) -> Iterator[Finding]:
    """Street addresses: all of them need a number."""
    if not clues.digits:
        return
    if _holds(clues.text, _LOWER_KINDS):
        for match in _LOWER.finditer(clues.text):
            yield Finding(match.start(), match.end(), e.STREET_ADDRESS, 0.7)
    if not clues.capitals:
        return
    if clues.language == "de":
        for match in _GERMAN_BARE.finditer(clues.text):
            if not _INSIDE.match(match[0]):
                yield Finding(match.start(), _town_after(clues, match.end()), e.STREET_ADDRESS, 0.91)
    for needs, pattern in _PATTERNS:
        for match in pattern.finditer(clues.text) if _holds(clues.lower, needs) else ():
            if not any(character.isdigit() for character in match[0]) or _HEADLINE.search(match[0]):
                continue
            yield Finding(match.start(), _town_after(clues, match.end()), e.STREET_ADDRESS, 0.91)


def _holds(text: str, pieces: Iterable[str]) -> bool:
    """Whether the text contains one of the pieces."""
    for piece in pieces:  # noqa: SIM110 - any() takes twice the time
        if piece in text:
            return True
    return False


def _town_after(clues: Clues, end: int) -> int:
    """The end of the town that follows a street after a comma, or the end of the street."""
    town = _TOWN_AFTER.match(clues.text, end)
    while town and not lexicon().is_city(clues.lower[town.start(1) : town.end(1)]):
        town = _TOWN_AFTER.match(clues.text[: town.end(1)].rpartition(" ")[0], end)
    return town.end(1) if town else end
