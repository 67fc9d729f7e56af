"""Words around names in five languages: titles, greetings, introductions, and words that rule out a name."""

from __future__ import annotations

import re

from fledge.data.privacy.word_lists import read_sections, read_words

_LISTS = read_sections("name_cues")
HONORIFICS = read_words("honorifics")
_TITLES = (
    r"mr|mrs|ms|miss|mx|dr|prof|professor|sir|dame|rev|reverend|hr|fr|herrn?|frau|fräulein|doktor|dipl\.-ing|monsieur|madame|mademoiselle"
    r"|mme|mlle|m|maître|me|docteur|docteure|señora?|señorita|sra?|srta|doña|don|dra|doctora?|profesora?|senhora?|dona|doutora?|professora"
)
_PARTICLES = r"(?:de la|de los|de las|de|da|do|dos|das|del|von der|von|van der|van|le|la)"
TITLE = re.compile(rf"(?<![^\W_])(?<![.@/-])(?:{_TITLES})\.?\s(?P<particle>{_PARTICLES}\s)?$")
GREETING = re.compile(
    r"(?:^|[\n.!?,;:\"“«>]\s*|\b(?:oh|and|und|et|y|e)\s)(?:hi|hello|hey|dear|good (?:morning|afternoon|evening)|greetings|hallo|liebe[rs]?|guten (?:tag|morgen|abend)|servus|moin"
    r"|sehr geehrte[rs]?|grüß gott|bonjour|bonsoir|salut|coucou|cher|chère|hola|buen(?:os|as) (?:días|tardes|noches)|querid[oa]|estimad[oa]|olá|oi"
    r"|bom dia|boa (?:tarde|noite)|car[oa]|prezad[oa]|thanks?(?: you)?|many thanks|danke|merci|gracias|obrigad[oa]|best|regards|best regards|kind regards|warm regards"
    r"|sincerely|yours sincerely|cheers|yours(?: truly)?|love|xoxo|(?:viele|liebe|beste|herzliche|freundliche[nr]?) grüßen?|mit freundlichen grüßen|lg|vg|cordialement|bien à vous|bises"
    r"|amicalement|salutations|saludos|un saludo|atentamente|un abrazo|cordialmente|atenciosamente|um abraço|abraços?|beijos?|att|abs|besos|bisous|mfg|grüße|gruß|(?:viele|liebe) grüße aus \w+|cumprimentos|com os melhores cumprimentos"
    r"|signed(?: by)?|gezeichnet|unterzeichnet von|signé par|firmado por|assinado por|signé|firmado|assinado)\s*,?\s+$"
)
FIELD = re.compile(
    r"(?<![^\W_])(?:(?:full |first |last |middle |user |contact |patient |customer |client |employee |family |given |sur|fore|legal |maiden )?name|patient|customer|client|employee|contact|from|to|cc|attn|attention"
    r"|(?:card|account|policy) ?holder|beneficiary|recipient|sender|signed(?: by)?|author|applicant|tenant|witness|insured|passenger|guest|student|landlord|buyer|seller|owner|manager|user"
    r"|(?:vor|nach|familien|kunden|patienten|voll)?name|patient(?:in)?|kund(?:e|in)|kontoinhaber(?:in)?|empfänger(?:in)?|absender(?:in)?|mitarbeiter(?:in)?|ansprechpartner(?:in)?|mieter(?:in)?|unterschrift"
    r"|(?:pré)?nom(?: complet| de famille)?|client(?:e)?|titulaire|destinataire|expéditeur|bénéficiaire|employée?|nombre(?: completo)?|apellidos?|paciente|titular|cliente|empleado|destinatario|remitente|firmante"
    r"|nome(?: completo)?|sobrenome|apelido|destinatário|remetente|funcionári[oa]|utente|beneficiári[oa])(?: is)?\s*[:=]\s*[\"'«„]?\s*$"
)
INTRODUCTION = re.compile(
    r"(?<![^\W_])(?:(?:my|his|her|their|whose|the|full|your) (?:full |first |last |given |maiden |middle )?names? (?:is|was|are)|name's|call me|known as|called|named|i am|i'm|i’m|this is|it's|speaking is"
    r"|(?:mein|sein|ihr|unser) (?:voller |voll\w+ )?name (?:ist|lautet)|ich hei(?:ß|ss)e|hei(?:ß|ss)t|ich bin|hier ist|namens|hier spricht|(?:moin|servus|hallo|hi|hey|guten \w+),? hier|genannt|je m['’]appelle|s['’]appelle|mon nom (?:complet )?est|je suis|(?:son|leur) nom est|c['’]est|nommée?|dénommée?"
    r"|me llamo|se llama|mi nombre (?:completo )?es|(?:su) nombre es|soy|llamad[oa]|el nombre es|(?:o )?meu nome (?:completo )?é|(?:o )?nome del[ea] é|(?:me )?chamo-me|chamo-me|me chamo|chama-se|se chama|sou (?:o|a)|sou|chamad[oa]|aqui é (?:o|a)|aqui é)"
    r",?:?\s+[\"'«„]?$"
)
# Relations to a person: relatives, friends, people at work and in the house.
RELATION = (
    r"colleague|friend|best friend|(?:step|half|twin )?(?:brother|sister)(?:-in-law)?|wife|husband|spouse|(?:ex-?)?(?:wife|husband|girlfriend|boyfriend)|boss|neighbou?r|(?:step|god)?(?:son|daughter)(?:-in-law)?|uncle|aunt(?:ie)?"
    r"|(?:grand|step|god)?(?:mother|father|ma|pa)(?:-in-law)?|mom|mum|dad|grandson|granddaughter|cousin|nephew|niece|roommate|flatmate|housemate|landlord|landlady|partner|fiancée?|co-?worker|buddy|pal|bro|sis|bff|ex|mate|kid|child|baby|dentist|doctor|lawyer|tutor|coach|nanny|babysitter"
    r"|kolleg(?:en?|in)|(?:ex-?)?freund(?:in)?|(?:schwieger|stief|groß|ur)?(?:bruder|schwester|sohn|tochter|mutter|vater|kind|enkel|enkelin|eltern)|schwager|schwägerin|frau|mann|chef(?:in)?|nachbar(?:in|n)?|onkel|tante|oma|opa|mama|papa|cousine?|neffe|nichte|mitbewohner(?:in)?|vermieter(?:in)?|partner(?:in)?|verlobte[rn]?|ex|kumpel"
    r"|collègue|amie?|copine?|copain|(?:beau-|demi-|grand-)?(?:frère|père|fils)|(?:belle-|demi-|grand-)?(?:sœur|soeur|mère|fille)|femme|mari|patronne?|chef(?:fe)?|voisine?|oncle|maman|papa|mamie|papy|époux|épouse|conjointe?|compagne|compagnon|neveu|nièce|colocataire|coloc|pote|propriétaire"
    r"|compañer[oa]|amig[oa]|(?:medio )?herman(?:astr)?[oa]|espos[oa]|jef[ea]|vecin[oa]|hij[oa]|tí[oa]|madre|padre|mamá|papá|marido|mujer|novi[oa]|prim[oa]|sobrin[oa]|abuel[oa]|niet[oa]|suegr[oa]|cuñad[oa]|yerno|nuera|pareja|caser[oa]"
    r"|colega|irmão|irmã|mulher|chefe|vizinh[oa]|filh[oa]|ti[oa]|mãe|pai|mamãe|papai|namorad[oa]|noiv[oa]|avó|avô|net[oa]|sogr[oa]|cunhad[oa]|genro|nora|companheir[oa]|senhori[oa]|patroa|patrão"
)
_TRADES = (
    r"manager|supervisor|client|patient|customer|employee|assistant|teacher|lawyer|attorney|solicitor|therapist|accountant|secretary|plumber|electrician|mechanic|carpenter|builder|gardener|cleaner|caretaker|janitor|nurse|midwife|physio(?:therapist)?|vet|pharmacist|driver|courier|trainer"
    r"|professor|instructor|principal|headteacher|agent|broker|adviser|advisor|consultant|contractor|engineer|architect|tenant|applicant|candidate|intern|trainee|apprentice|student|pupil|classmate|director|owner|witness|guest|passenger|officer|detective|sergeant|inspector|councillor|recruiter|receptionist|barber|hairdresser|stylist|photographer|guy"
    r"|ärztin|arzt|zahn(?:arzt|ärztin)|tierarzt|tierärztin|lehrer(?:in)?|kund(?:e|in|en)|anwalt|anwältin|steuerberater(?:in)?|hausmeister(?:in)?|klempner(?:in)?|elektriker(?:in)?|handwerker(?:in)?|mechaniker(?:in)?|gärtner(?:in)?|pfleger(?:in)?|hebamme|therapeut(?:in)?|trainer(?:in)?|betreuer(?:in)?"
    r"|mieter(?:in)?|bewerber(?:in)?|praktikant(?:in)?|azubi|schüler(?:in)?|student(?:in)?|mitarbeiter(?:in)?|sachbearbeiter(?:in)?|makler(?:in)?|fahrer(?:in)?|zeug(?:e|in|en)|patient(?:in|en)?|schiedsrichter(?:in)?|leiter(?:in)?|geschäftsführer(?:in)?|verkäufer(?:in)?|rechtsanwalt|rechtsanwältin|polizist(?:in)?|assistent(?:in)?|sekretär(?:in)?"
    r"|médecin|avocate?|notaire|plombier|plombière|électricien(?:ne)?|mécanicien(?:ne)?|jardinier|jardinière|gardienne?|concierge|infirmi(?:er|ère)|sage-femme|kiné|dentiste|vétérinaire|professeure?|prof|instituteur|institutrice|maîtresse|entraîneur|nounou|locataire|comptable|conseill(?:er|ère)|stagiaire|élève|étudiante?|employée?|salariée?"
    r"|client|conducteur|conductrice|témoin|patiente?|directeur|directrice|gérante?|responsable|secrétaire|assistante?|syndic|conciliat(?:eur|rice)|traducteur|traductrice|formateur|formatrice|artisan|facteur|livreur|agente?"
    r"|médic[oa]|doctora?|abogad[oa]|fontaner[oa]|electricista|mecánic[oa]|jardiner[oa]|porter[oa]|conserje|enfermer[oa]|dentista|veterinari[oa]|maestr[oa]|profesora?|entrenadora?|niñera|inquilin[oa]|contable|asesora?|becari[oa]|alumn[oa]|estudiante|emplead[oa]|cliente|conductora?|testigo|paciente|directora?|gerente|encargad[oa]|responsable"
    r"|secretari[oa]|propietari[oa]|arrendadora?|peluquer[oa]|albañil|carpinter[oa]|notari[oa]|gestora?|psicólog[oa]|fisio|repartidora?|taxista"
    r"|advogad[oa]|encanador|canalizador|eletricista|mecânic[oa]|jardineir[oa]|porteir[oa]|zelador[a]?|síndic[oa]|enfermeir[oa]|veterinári[oa]|professora?|treinador[a]?|babá|inquilin[oa]|contador[a]?|contabilista|consultora?|estagiári[oa]|alun[oa]|aluno|funcionári[oa]|motorista|testemunha|diretora?|gerente|responsável|secretári[oa]|proprietári[oa]"
    r"|senhorio|senhoria|utente|doente|cabeleireir[oa]|pedreir[oa]|carpinteir[oa]|notári[oa]|psicólog[oa]|fisioterapeuta|mediadora?|locadora?|condutora?"
)
ROLE = re.compile(
    rf"(?<![^\W_])(?:{RELATION}|{_TRADES}|(?:un tal de|um tal de|une? certaine?|a certain|ein(?:e|en)? gewisse[rn]?|un tal|cierta|cierto|certo|certa)),?\s+$"
)
# Only a name follows these.
CALLED = re.compile(
    r"(?<![^\W_])(?:(?:my|his|her|their|whose|your) (?:full |first |last |maiden )?names? (?:is|was)|name's|named|mein name (?:ist|lautet)|hei(?:ß|ss)(?:e|t|en)|namens"
    r"|m['’]appelle|s['’]appelle(?:nt)?|mon nom est|me llamo|se llama|mi nombre es|meu nome é|chamo-me|chama-se|me chamo|se chama)\s+[\"'«„]?$"
)
_LOWER_NAME = r"[^\W\d_]{3,}(?:-[^\W\d_]+)?"
_LOWER_PAIR = (
    rf"(?P<first>{_LOWER_NAME})(?: (?P<second>{_LOWER_NAME}))?(?: (?P<third>{_LOWER_NAME}))?(?![^\W_])"
)
LOWER_INTRODUCTION = re.compile(
    rf"(?<![^\W_])(?i:my (?:full |first )?name is|my name's|i am called|ich hei(?:ß|ss)e|mein name ist|je m['’]appelle|mon nom est|me llamo"
    rf"|mi nombre es|meu nome é|chamo-me|me chamo) {_LOWER_PAIR}"
)
WEAK_INTRODUCTION = re.compile(
    rf"(?<![^\W_])(?i:it['’]?s|this is|i am|i['’]?m|here is|hier(?: ist| spricht)?|ich bin|c['’]est|ici|je suis|soy|sou|aqui é|habla|fala) (?:o |a )?{_LOWER_PAIR}"
)
ARTICLE = {  # a thing, not a person: "the Mercedes", "ein Ford"
    "en": re.compile(r"(?<!\w)(?:the|an?)\s$"),
    "de": re.compile(r"(?<!\w)(?:das|eine?[nmrs]?|im|den|in den)\s$"),
    "fr": re.compile(r"(?<!\w)(?:une?|les)\s$"),
    "es": re.compile(r"(?<!\w)(?:una?|los|las)\s$"),
    "pt": re.compile(r"(?<!\w)(?:uma?)\s$"),
}
# Verbs of asking or telling a person.
ASK = re.compile(
    r"(?<![^\W_])(?:ask|tell|remind|ping|pick up|notify|loop in|invite|thank|meet|met|text|e-?mail|phone|married|marry|saw|hired|hire|email(?:ed)?|phoned|told|asked|thanked|contact|emailing|contactez|appelez|contactar a|contacte a|contate|contacte|kontaktieren sie|schreib|schreibe|écri\w* à|parle\w* à|téléphon\w* à|envoie\w* à|répon\w* à|escrib\w* a|llam\w* a|escrev\w* (?:ao?|à)|lig\w* (?:ao?|à|para)|respond\w* (?:ao?|à)|frage?|sage?|erinnere?|bitte|triff|lade|heiratet|demande[rz]? à|dis à|dites à|rappelle à|remercie|préviens|rencontré"
    r"|pregunta(?:r|rle|le)? a|ruf|kommt|call|di(?:le)? a|recuerda(?:le)? a|avisa a|invita a|conocí a|pergunt[ae]r? [aà]|diz a|diga a|lembr[ae] a|avis[ae]|convid[ae])(?: o| a| ao)?\s$"
)
# Right after a single name that is also a word: verbs of what people do.
NEXT_IS_PERSON = re.compile(
    r"\s(?:said|says|told|asked|asks|phoned|emailed|texted|reported|mentioned|explained|suggested|presented|proposed|confirmed|offered|complained|forgot|thanked|complained|promised|refused|laughed|cried|lives|works|moved|married|got married|is on holiday|is on leave|is off sick|paid|borrowed|wrote|writes|thinks|thought|called|replied|answered|wants|went|dijo|dice|preguntó|pregunta|escribió|quiere|llamó|contestó|olvidó|pagó|prometió|se negó|se quejó|vive|trabaja|cree|informó|explicó|propuso|comentó|confirmó|avisó|piensa|disse|diz|ligou|respondeu|esqueceu|pagou|prometeu|reclamou|mora|trabalha|falou|contou|acha|informou|explicou|propôs|comentou|confirmou|avisou|perguntou|escreveu|quer"
    r"|sagte|sagt|fragte|fragt|schrieb|meint|meinte|will|hat gesagt|hat gefragt|rief an|ruft an|antwortete|wohnt|arbeitet|kündigte|hat gestern|hat heute|hat mir|hat uns|hat ihr|hat ihm|ist krank|ist im urlaub|heiratet|zahlt|bezahlte|möchte|glaubt|erzählte|erzählt|berichtete|berichtet|erklärte|informierte|schlug|schlägt|bestätigte|meldete|a dit|dit|a demandé|demande|a écrit|veut|a refusé|a accepté|a promis|a raconté|a payé|a envoyé|a reçu|a téléphoné|a rappelé|a perdu|a signalé|a expliqué|a proposé|a confirmé|a prévenu|pense|croit|habite|travaille"
    r"|(?:never |has |had |hasn't |hat |no ha |ha |não |nunca |n['’]a pas |a |has not )(?:signed|replied|answered|called|agreed|resigned|arrived|forgot|unterschrieben|geantwortet|angerufen|vergessen"
    r"|firmado|contestado|respondido|llamado|llegado|olvidado|signé|répondu|appelé|oublié|assinou|respondeu|ligou|chegou|esqueceu))(?![^\W_])"
)
# Right after a run of capitals: it is a firm, a place, a law, a thing.
NEXT_IS_NO_PERSON = re.compile(
    r"(?:['’]s?)?\s(?:inc|ltd|llc|plc|gmbh|ag|kg|corp|co|group|gruppe|holding|company|corporation|foundation|stiftung|fondation|university|universität|université|college|institute|school|schule"
    r"|hospital|airport|telescopes?|tower|building|memorial|center|centre|act|doctrine|plan|treaty|lecture|inequality|flughafen|aéroport|museum|musée|bank|street|st|avenue|ave|road|rd|lane|ln|drive|dr|boulevard|blvd|square|park|bridge|station|stadium|hotel|motors|theorem|lemma|equation|equations|law|laws|distribution"
    r"|process|series|transform|transformation|equilibrium|principle|conjecture|algorithm|method|matrix|number|numbers|constant|effect|paradox|test|index|syndrome|disease|prize|award|award|medal|cup|trophy|championship|wars?"
    r"|model|edition|pro|plus|mini|max|ultra|lite|enterprise|studio|framework|library|programming|script|language|database|server|api|sdk|festival|day|week|season|county|river|lake|mountains?|island|islands|beach|valley|city|airlines|records|satz|gesetz|formel|preis"
    r"|conjecture|hypothesis|scale|unit|machine|engine|oil|cheese|cake|salad|sauce|tea|juice|code|cipher|space|group|ring|field|filter|chain|chains|curve|loop|tree|graph|sort|bot)(?![^\W_])"
)
# Capitalised words that are on lists of names but hardly ever names in a prompt.
NOT_NAMES = read_words("not_names")
# Words that can't begin a name but belong to one inside it.
CAPITAL_PARTICLES = _LISTS["particles"]
# First words of names of places.
SAINTS = _LISTS["saints"]
