"""Words around places in five languages: of living, working and going; field names; first words of names of towns."""

from __future__ import annotations

import re

from fledge.data.privacy.word_lists import read_sections

LOCATIVE = re.compile(
    r"(?<![^\W_])(?:in|at|from|near|to|around|outside|of|via|across|towards?|leaves|reach(?:ed|es)?|aus|nach|bei|von|ab|um|raum|richtung|gegen|über|à|de|près de|vers|depuis|en|desde|a|hacia|cerca de|em|no|na|do|da|para|perto de|visit|visiting|leaving|leave)\s$"
)
# Prepositions that are otherwise everyday words: insufficient for an ambiguous name.
WEAK = re.compile(r"(?<![^\W_])(?:of|to|de|a|da|do|no|na|at|von|um|via|über|en|para|visit)\s$")
PERSONAL = re.compile(
    r"(?<![^\W_])(?:(?:born|geboren|née?|nac\w+|nasc\w+)(?: [\w./,-]*\d[\w./,-]*| de| el| le| am| on| em| a| [^\W\d_]{3,9}){1,6} (?:in|à|en|em)|(?:live[sd]?|living|born|grew up|raised|based|resid(?:e|es|ed|ing)|stay(?:s|ed|ing)?|work(?:s|ed|ing)?|settled|house|home|apartment|flat|office|hotel|meeting|warehouse|branch|store|clinic|hospital|currently|wedding|conference|school|store|arrived|lives?|moved?|meeting) (?:here |down |up |over |back |out )?(?:in|at|near|outside|outside of)"
    r"|(?:moved?|moving|relocat(?:e|ed|ing)|travel(?:l?ed|l?ing)?|trip|fly|flying|flight|flights|drive|driving|ship(?:ped|ping)?|deliver(?:ed|y)?|sent|send|train|bus|head(?:ed|ing)?|visit|commute|going|get|way|back|return(?:ed|ing)?) (?:it |this |them |me |us )?(?:to|from)|(?:i'm|i am|we are|we're|come|comes|came|is|are|hail|originally) from|hometown (?:of|is)|visit(?:ing|ed)?|city of|town of|village of"
    r"|(?:wohn\w*|leb(?:e|t|en|te)|gebor\w*|aufgewachsen|arbeite\w*|wohnhaft|umzug|umgezogen|gezogen|zieh\w*|reise|fahr\w*|flug|verlegt|verzogen|sommer|winter|flieg\w*|zug|komm\w*|stamm\w*|büro|wohnung|filiale|haus|hotel|treffen)(?: \w+){0,2} (?:in|aus|nach|bei|von)"
    r"|(?:habit\w*|vi[st]|vivons|vivez|née?|déménag\w*|emménag\w*|travaill\w*|résid\w*|install\w*|arriv\w*|voyage\w*|vol|train|aller|déplacé\w*|transféré\w*|réunion|distance y a-t-il|rends?|vais|retourn\w*|rendez-vous|grandi|bureau|hôtel|appartement|maison|située?)(?: \w+){0,2} (?:à|au|aux|en|pour|vers|dans|sur)|(?:viens|vient|venons|originaire|partir|arrive|déménagé|parti|part|menuisier|déménag\w*|emménag\w*|habitant|natif|native) (?:de|du)"
    r"|(?:viv\w*|nac\w*|resid\w*|trabaj\w*|crec\w*|mud\w*|ubicad[oa]|alojad[oa]|oficina|casa|piso|apartamento|hotel|reunión|está|estoy|estamos|quedamos) (?:\w+ )?(?:en|a)|(?:viaj\w*|vuelo|voy|vamos|ir|mud[éo]\w*|traslad\w*|tren|llegar|llegué|regres\w*) (?:a|hacia|para)|(?:soy|somos|vengo|viene|es|vecin[oa]|natural|originari[oa]|mud\w*) de"
    r"|(?:departs?|departing|departed|depart|leaves|leav(?:e|es|ing)|arriv(?:e|es|ed|ing)|land(?:s|ed|ing)?|drove|flew|driving|bound|transfer(?:red)?|commut\w+|studie[sd]|stud(?:y|ying)|back|parked|stuck|stopp(?:ed|ing)) (?:from|in|at)"
    r"|(?:part\w*|décoll\w*|sort\w*|revien\w*|reven\w*|rentr\w*|provenance|départ|arrivée|déménag\w*|gare|mairie|banlieue|tribunal|région|environs|côté|hôpital|centre) (?:de|d['’]|du)"
    r"|(?:sal\w{1,5}|lleg\w*|vuelv\w*|part\w*|despeg\w*|regres\w*|volv\w*|vuelt\w*|proced\w*|ven\w{2,4}|desplaz\w*|afueras|estación|ayuntamiento|alrededores|cerca|juzgado|barrio|centro) (?:de)"
    r"|(?:lleg\w*|mud\w*|traslad\w*|volv\w*|vuelv\w*|ida|viaje|acerc\w*) (?:a|hasta|hacia)|(?:llega\w*|estudi\w*|aparc\w*|hosped\w*|nacid[oa]|domiciliad[oa]|residente|vecindad|sede|tienda|finca|parcela) en"
    r"|(?:sa[íi]\w{0,4}|part\w*|decol\w*|regress\w*|volt\w*|proveniente|arredores|arrabaldes|estação|câmara|tribunal|prefeitura|rodoviária|centro|perto) (?:de|da|do)|(?:cheg\w*|mud\w*|ida|viagem|desloc\w*) (?:a|ao|à|até|em)"
    r"|(?:estud\w*|hosped\w*|estacion\w*|residente|domiciliad[oa]|nascid[oa]|sede|loja|terreno|sítio) (?:em|no|na)"
    r"|(?:abfahrt|ankunft|bahnhof|studier\w*|abgeflogen|ankomm\w*|landen?|geparkt|ansässig|zweigstelle|praxis|kanzlei|nähe)(?: \w+)? (?:in|ab|von|nach)"
    r"|(?:heirat\w*|marient?|casan?|casam?|casou|casó|married|marry|wedding|issued|expedid[oa]s?|emitid[oa]s?|délivrée?s?|ausgestellt)(?: am| on| le| el)?(?: [\d./-]{6,10})? (?:in|at|à|en|em|no|na)"
    r"|(?:i'm|i am|this is|hi|hello|hallo|bonjour|salut|hola|buenas|olá|oi|boa tarde|bom dia|hier(?: ist)?|ich bin|ici|je suis|soy|sou (?:o|a)|sou|aqui é|aquí),? [^\W\d_]{2,20} (?:from|aus|de|do|da)"
    r"|(?:mor\w*|viv\w*|nasc\w*|trabalh\w*|resid\w*|cresc\w*|fic\w*|localizad[oa]|escritório|casa|apartamento|hotel|reunião|estou|estamos) (?:\w+ )?(?:em|no|na)|(?:viaj\w*|voo|vou|vamos|ir|mud\w*|transferi\w*|comboio|trem|chegar|regress\w*|volt\w*) (?:para|a|ao|até)|(?:sou|somos|venho|vem|é|natural|mud\w*) (?:de|do|da))\s$"
)
LIVES = re.compile(
    r"(?<![^\W_])(?i:i (?:\w+ )?(?:live|work|grew up|was born|am based) in|i(?:['’]| a)?m from|i come from|(?:living|based|born|moved|moving) (?:in|to)|(?:wohne|lebe|arbeite)(?: \w+)? in|(?:komme|bin) aus|geboren in"
    r"|(?:lives|works|living|studies|staying) in|(?:wohnt|lebt|arbeitet|studiert)(?: \w+)? in|kommt aus|(?:habite|vit|travaille) à|(?:vive|trabaja|estudia) en|(?:mora|vive|trabalha|estuda) em|j['’]habite(?: à| a)?|je vis à|né(?:e)? à|je viens de|vivo en|resido en|trabajo en|nací en|soy de|vengo de|moro em|moro no|vivo em|trabalho em|nasci em|sou de|venho de)\s"
    r"(?:the )?(?P<town>[a-zà-öø-ÿ]{2,20}(?:[ '’-][a-zà-öø-ÿ]{1,20}){0,4})"
)
FIELD = re.compile(
    r"(?<![^\W_])(?:city|town|location|place of birth|birthplace|residence|hometown|destination|delivery to|ort|wohnort|stadt|geburtsort|ville|lieu(?: de naissance)?|commune|ciudad|localidad|lugar(?: de nacimiento)?|municipio|cidade|localidade|município|naturalidade|local de nascimento|state|county|bundesland|provincia|estado|país|country|land|pays)\s?[:=]\s*$"
)
PREFIX = read_sections("place_cues")["prefix"]
