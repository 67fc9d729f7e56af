"""Names and towns with little or nothing beside them that says they are somebody's: how many of them are found.

They were found by version 11 of the rules, which took a listed name alone and so changed ordinary prompts. A model
under `privacy.ner` is for these.
"""

from __future__ import annotations

from fledge.data.privacy import PrivacyFilter
from tests.data.privacy.test_siblings import missed

TEXTS = [
    "hola «pilar», mañana no puedo",
    "Fico no aguardo.\n\n«Zuleica Bittencourt»",
    "The boiler is dead again.\n\n«Barnaby Quillfeather»",
    "thanks!\n- «Siobhan»",
    "talk soon, «josh»",
    "le propriétaire, «Firmin Delvaux», refuse",
    "«Beatrix» said the report is late.",
    "«Lorcan» and I wrote the proposal.",
    "«Ludger» hat gestern gekündigt.",
    "Kannst du «Wiebke» bitte anrufen?",
    "Heute schrieb mir «Eckehard Trost» eine lange Mail.",
    "«Ombeline» a refusé la proposition.",
    "«Amaia» dijo que sí.",
    "«Valmir» disse que não vem.",
    "Ontem encontrei a «Neusa Tavares» no mercado.",
    "It's «Fenella» from accounting.",
    "O síndico chama-se «Clóvis Bandeira».",
    "Attendees: «Ravensworth, Imogen»; «Bexley, Hugo»",
    "Spoke with «Harold J. Pemberton» about it.",
    "Das Zeugnis ist für «Anke-Maria Dörfler».",
    "o processo da «Maria das Dores Sarmento»",
    "el recurso de «José Luis de la Cuadra»",
    "Le bail de «Jean-Baptiste d'Aubigny»",
    "payment from «DOUGLAS FAIRWEATHER» received",
    "«Marnie»: did you feed the cat?\n«Declan»: yes, twice",
    "«Swantje»: Kommst du?\n«Ole»: Gleich.",
    "«Enzo» : tu viens ?\n«Lila» : oui",
    "The winner was «Tshepo Johnson» again.",
    "Die Prüfung hat «Elif Karagöl» bestanden.",
    "Le prix revient à «Sékou Martin».",
    "El piso es de «Yaretzi Hernández».",
    "O prêmio foi para «Jurandir Oliveira».",
    "vivo en «murcia» y busco piso",
    "My flight departs from «Wichita» at noon.",
    "The bus leaves «Aberystwyth» at six.",
    "Der Zug ab «Göttingen» fällt aus.",
    "Wir fahren morgen nach «Rosenheim».",
    "Le train part de «Besançon» à midi.",
    "Nous partons de «Quimper» samedi.",
    "El autobús sale de «Badajoz» a las ocho.",
    "Llegamos a «Cáceres» de noche.",
    "O ônibus sai de «Londrina» cedo.",
    "Chegamos a «Évora» à noite.",
    "dinner on friday in «tacoma»?",
    "treffen wir uns am sonntag in «kassel»?",
    "on se voit samedi à «toulouse» ?",
    "nos vemos el domingo en «albacete»?",
    "a gente se vê sábado em «florianópolis»?",
    'can you rewrite this email to sound nicer: "«Marguerite», I need the keys back by Tuesday. «Osvaldo»"',
    "Team lead: «Ranjit Bhattal», deputy: «Cordelia Fenn»",
    "Draft a eulogy for my grandmother «Wilhelmina», she was born in «Cardigan».",
    "«Keira» and «Malachi» are getting married in «Whitby» in June, write a toast",
    "hey can u text «priya» that im late, i'm stuck in «luton»",
    "Coach «Ferreira» benched my son «Elijah» again.",
    "Performance review: «Ingeborg T. Halloran» exceeded expectations.",
    "mein kollege «sven» aus «erfurt» meldet sich nicht",
    "Einladung: «Babette» und «Konstantin» heiraten am 3. Mai in «Goslar».",
    "Ansprechpartner ist «Volkmar Ritterbusch» in der Filiale «Hameln».",
    "Wer hat recht, ich oder «Annika»?",
    "Peux-tu écrire à «Mélisande» que je rentre de «Colmar» dimanche ?",
    "Le contrat entre «Gaëtan Rocheteau» et «Fatoumata Diarra» est signé.",
    "ma pote «inès» habite à «nancy» et cherche un coloc",
    "«Ludivine» et «Bastien» se marient à «Biarritz».",
    "Escribe a «Remigio» que llego de «Soria» el lunes.",
    "mi amiga «rocío» vive en «cádiz» y busca trabajo",
    "Meu filho «Caio» estuda em «Campinas», a professora é a dona «Iracema».",
    "Pregunta a «Esperanza» si viene.",
    "«R. Raghunathan» seconded it.",
    "Accepted password for «martha burch» from the office",
    "hola, soy Ana de «Belo Horizonte»",
    "(10:42) «nadine»: did you feed the cat?\n(10:43) «declan»: yes",
]
FOUND = 0.12


def test_the_share_that_docs_give_is_found(privacy: PrivacyFilter) -> None:
    values = sum(text.count("«") for text in TEXTS)
    left = [value for text in TEXTS for value in missed(privacy, text)]
    assert 1 - len(left) / values >= FOUND, left
