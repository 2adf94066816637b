"""Vocabulary of synthetic prompts: 1,024 common English words.

Each is one token, with a space before it, for seven tokenizers in wide use (Qwen, cl100k, Mistral's
SentencePiece of 32k and its Tekken, DeepSeek, Claude): n of them joined by spaces were n tokens to within 0.1
% at n = 504, and at most 2 tokens more at n = 16. Words that could trigger a model's safety training are left
out.
"""

_TEXT = """
ability able above accident add advantage adventure afraid again against agree agreement aim air algebra
allow almost along already also although always among amount ancient anger angry animal ant any anywhere
apart appear apple appointment area argument around arrive art artist ask attach attempt attention
audience aunt available average back background backward balance ball bank baseball basketball bat be
beach bear before begin beginning behind belt benefit between beyond big billion bird bitter blanket
blue board book boot both bottle bottom boundary box boy brain branch brand brave break breath breathe
bridge bright bring brother browser brush bucket budget build bus business butter button buy call calm
camera camp campaign candidate capital captain car card career careful carefully carry cash cat catch
cause cell center certain certainly chair challenge champion change channel chapter chart cheap check
cheese chemical choice circuit city civil claim class clear clearly climb close cloth club clue coach
coal coast coat code coffee coin cold collect college color colour column comb combine command committee
common community company component concept concern concert condition conference consider constant
container content context continue control cook cool copper corner cost cotton council count country
couple course court cousin cover cow craft create crowd cry cultural culture cup current curve custom
customer cycle damage dance dark date daughter deal debate debt decide decision deep defend degree delay
delivery demand democratic density deny depart depth desire detail develop device diagram diet
difference different difficult director dirty discussion divide do doctor door double doubt dozen draft
drawing dream drive drop drum dry duck during dust duty each early earth easily east easy economy edge
effort either election electric email emotion emperor empire employee employer empty energy enough enter
environment environmental error escape event every everywhere evidence exactly exchange exercise exit
expect expensive expert explain face fact factor family famous fate father fault feature feel feeling
fellow few fiction field film final find finger fire firm fish five flight floor fly follow food foot
force foreign forest forget forgive fork form formula forward four frame free freedom frequency fresh
friend from fruit full fund garden gas gate gather general gentle geometry get gift girl glass go gold
good governor grade grain grant grass great green group growth guard guest guide guitar habit hand
happen happy hard hardly hardware have head healthy hear heat height help helpful here hero hide high
hit hockey holiday home hope host hotel hour house how however hundred hungry ice idea if image
important in inch increase indeed industrial input insect instrument intention international internet
interview into involve island join joint joke journal journey judge judgment justice key keyboard kind
label labor lamp land lane language last laugh law lawyer layer lazy leader leadership learn leave
lecture legal lens letter level library life light likely limit lion list listen little live loan local
lock log long look loop lose lot low lunch lung machine magic mail main majority make man manager manner
many map mark mass master match mathematical matter maybe mayor mean measure meat medal medical meet
meeting memory mention merchant message metal middle milk million minute mirror mission mistake mix
modern moment money mood moon more morning mostly mother motor mountain mouse mouth move movie much
muscle museum music myth narrow national natural navy necessary neck need needle neither nest never nice
noise none normal north note novel now nurse object of off offer office often oil old on once one only
operation opportunity order organ otherwise outcome over owner pace pack package painter pair palace
panel parent parish park part particle partly partner party pass past patch path patient pause pen
pepper percent perfect person personal phase phone photo physical piano pig pile pilot pitch place plan
plant play player plot pocket poem point policy political popular port position possible post pot
potential pound powder practical practice president price pride prince print prize probably problem
processor produce product program property proposal protect protein proud prove provide public pull push
quality quantity quarter query question queue quickly quietly quite quote radio rail rain raise rarely
rate raw reach reaction reader ready realize really reason receive recent record reform refuse region
reject relation relax release relief remain repair reply report request require research resource
response responsibility rest restaurant result reward rhythm rights ring risk river road rock root rough
route row royal rule safe sail salad salt sample save say scale schedule scheme school science scope
score screen script search season seat second secret section sector seed seem segment sell send sense
sentence separate sequence serious serve server service session set seven shadow shake shape share sharp
sheep shelf shift shine ship shirt shock shoe shop short show shy sight sign signal signature silk
silver similar simple simply since sing single sister sit site situation six size sky sleep slide slope
slow slowly small smell smile smoke smooth snow soap social society soft software solution some
sometimes son song soon soul sound soup sour south space speak special speech spirit split sport spot
spring square stack staff stairs stand standard star start state status steel step stock stomach stone
stop store storm story strange strategy stream street strength stretch string strip structure studio
study stuff submit success such sugar suggest suit sum summer sun surface surprise sweet swim switch
symbol table tail take talent talk tank tape taste tax tea teach teacher team television tell
temperature ten tennis territory text thank that then theorem theoretical theory there therefore these
thick think third thirty this though thousand thread throat throw ticket time tip title tomorrow tone
too tool tooth top touch toward towel tower town track trade traditional train travel tree trend trick
trip triple trust truth tube turn twenty understand uniform union unit universe university unless until
up upward urban use usually vacation value variable various version vessel victory video view village
vision visit voice volume vote wage wait walk wall warning wash waste watch weakness weather weight west
wet what wheel when where which while whisper whose wide width wife win wind wing winter wish with
within without witness wolf woman wood work worker world write writer yard year yesterday young youth
zero
"""

#: In alphabetical order; a power of two, so that a word has ten bits.
WORDS: tuple[str, ...] = tuple(_TEXT.split())
