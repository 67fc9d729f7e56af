"""Names and places that are also everyday words, brands or months: they need more than a capital letter.

Compiled by hand from the names and cities that are frequent as words (see `lexicon`).
"""

from __future__ import annotations

COMMON_NAMES = frozenset(
    (
        # English
        "will mark may april june july august summer autumn winter spring sunday hope grace faith joy rose lily ivy violet "
        "jade ruby amber crystal dawn eve art bill bob sue pat gene grant chase drew dean guy ray rich max sandy penny chad "
        "georgia virginia carolina dakota austin dallas houston jordan israel sydney brooklyn madison jackson washington "
        "lincoln frank ernest christian angel jesus paris london chelsea china india asia kenya america charity destiny "
        "mercy patience harmony melody heaven miracle precious princess prince king queen duke earl baron sky storm forest "
        "river rivers rocky sunny stone young long price king love little early said general case white black brown green "
        "gray grey red blue rice wood woods hill hills field fields park parks street bell bush best good day days weeks "
        "knight bishop pope cook baker butler carpenter cooper fisher gardener hunter mason miller parker potter porter "
        "shepherd singer taylor turner walker weaver wright cross banks bond cash rush sharp swift noble power powers snow "
        "frost waters wolf fox lamb bird fish crane berry cherry bean pepper major french english holland ireland church "
        "temple judge author doctor lady sister press worth chance made less justice page miles rock peace beat champion "
        "silver sage branch golden forester wing cap heart hall ford rand bar miller walsh mars venus apollo alexa siri "
        "cortana jasmine java ruby perl pearl pascal ada swift django jenkins jasper atlas apache nova echo mercedes tesla "
        "ferrari porsche ford lincoln chevrolet bentley morgan dodge dyson gillette nike levi levis disney wilson nelson "
        "victoria regina gloria stella aurora luna iris olive daisy hazel poppy holly ginger candy bonnie faye joy lane "
        "marshall chase barry tony oscar emmy grammy nick jack dick rod rob don art phil harm tom van sam ken les lee "
        "chip buddy skip trace wade ward buck cliff glen dale heath brook ash reed sterling cash gage cal tad chester "
        "lancaster kent troy carter victor mike golf hotel oscar papa romeo juliet bravo charlie delta foxtrot tango "
        "liberty independence easter christmas noel sol solo star ocean bay sea coral dove raven robin jay lark wren "
        "genesis trinity nevaeh essence diamond gold sapphire opal money cook wise sweet strong savage short small moody "
        "sharp hardy merry gentle noble pope abbott monk priest dean bishop chancellor constable marshal sheriff "
        "mac else lot ever tan job sue tia mal mae pam dot meta alpha beta gamma sigma omega ai gemini claude max fable "
        "adobe oracle watson newton kelvin tesla hertz joule pascal watt ampere maxwell faraday coulomb curie gauss euler "
        "markov bayes fourier turing monte carlo "
        # German
        "ernst wolf mark till lies rosa horst viola rainer harm heide kai fürst kaiser könig herzog graf berg stein vogel "
        "fuchs hase schwarz weiß braun grün klein groß lang kurz neu alt jung reich arm koch bauer müller schneider fischer "
        "weber richter schäfer jäger zimmermann krüger engel sommer winter herbst frühling montag freitag sonntag kraft "
        "sturm stern sonne mond kern keller markt platz haus burg dorf feld wald busch baum blum rose schuster becker "
        "wagner meyer vogt beck frank franke hahn huhn lamm ochs kuhn horn bein arm haar bart könig bischof papst pfeiffer "
        # French
        "pierre jean france marine claire aimé victoire constant rose blanche noël olivier aurore océane petit grand "
        "legrand rousseau blanc noir leblanc lenoir roy leroy roi prince fontaine marchand boucher boulanger berger fournier "
        "charpentier chevalier rivière dubois forêt lune soleil mer été hiver printemps avril mai juin août lundi mercredi "
        "dimanche bonnet bon joly colin perrier évian michelin renault citroën peugeot chanel dior cartier michelle pascale "
        # Spanish, Portuguese
        "luz sol paz mar cielo flor rosa blanca clara dolores concepción esperanza consuelo rosario cruz santiago salvador "
        "domingo ángel jesús soledad amparo socorro perla gloria pilar rocío mercedes guadalupe lourdes milagros remedios "
        "ramos flores reyes rey santos silva reis costa rocha lima campos prado torres castillo castro guerra vega serra "
        "montes ríos rubio moreno blanco delgado bravo calvo gallego navarro serrano cano león vicente pastor herrero "
        "guerrero caballero zapatero marina marino luna iglesias méxico colombia vitória bela amado nascimento natal "
        "pereira oliveira carvalho pinheiro ferreira nogueira moreira leite barros mata ribeiro monteiro machado coelho "
        "lobo leão cordeiro pinto branco domingos bento abril julio junio mayo agosto janeiro fevereiro março maio junho "
        "julho setembro outubro novembro dezembro corona modelo estrella victoria nova aura vida grecia américa áfrica "
        "francia alemania bella linda bonita nieves caridad piedad fe trinidad asunción encarnación"
    ).split()
)

COMMON_PLACES = frozenset(
    (
        "mobile orange reading nice bath split male same most best deal sandwich bar van batman of date plano university "
        "young central federal superior normal liberal independence enterprise paradise surprise mission opportunity "
        "victoria santiago salvador santos natal lima león leon santander toledo mercedes guadalupe regina lincoln jackson "
        "houston austin dallas washington kent troy chandler henderson madison aurora garland orlando sydney alexandria "
        "phoenix columbus buffalo peer tours nancy angers lens essen halle hagen singen baden mainz bergen holiday summit "
        "spring george david mary anna victoria martin santa san los las angeles gary taylor young wilson nelson hamilton "
        "wellington florence sofia sofía vienna rome georgia jordan colombia libertad constitución constitution resistencia "
        "liberty olympia columbia colorado virginia carolina florida union alliance republic freedom commerce industry "
        "corona nova alma elk eagle bend hope media salt lake marina hollywood sunset golden diamond crystal pearl harper "
        "nada mon essen vitória victoria santana porto porta barra serra bahia oliveira lagos concepción concordia salta "
        "banda mina minas prato nola como alba luz sol mar tema tanga manga sake kobe nara chino paris hilton monte carlo "
        "warren douglas lawrence arnold marshall harvey murray clinton kennedy monroe perry fleet wells ware cannes ware "
        "brest angers caen metz orly grasse vence carrefour tarifa cordoba manhattan delta bo hub hull hook barry ham ash "
        "hamburg frankfurter oxford cambridge stanford berkeley princeton heidelberg harvard geneva bologna manila "
        "beira linz anderson evans victor page bell rama mora moreno franca pinto valencia granada palma alicante málaga "
        "mandan eden genesis ali abu man fan ur boom along meet mira lei kali diu un ho ye pa pen bu ip pi ans pau "
        "constantine jerusalem bethlehem ephesus troy babylon sparta carthage ginger moscow valley milan brooklyn "
        "surat pune cuba peru china india goa turkey chile mali niger chad guinea togo bengal sao são"
    ).split()
)
