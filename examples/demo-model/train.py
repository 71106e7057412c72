#!/usr/bin/env python3
"""Makes demo.gguf: writes a corpus of little stories and chats, trains a tokenizer and a small Llama on it, saves GGUF.

Everything is here: the grammar that generates the text, the training loop, the GGUF writer, and a reader that samples
from the finished file. Nothing is downloaded. It needs: pip install torch numpy tokenizers gguf

    python3 train.py                        about 40 minutes on one CPU core; writes demo.gguf
    python3 train.py --quick                one minute: a smoke test, writes demo-quick.gguf
    python3 train.py --show 5               prints five generated documents
    python3 train.py --sample demo.gguf     continues a few prompts with the weights read back from the file
"""
import argparse
import itertools
import math
import os
import random
import re
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# ======================================================================================================================
# The grammar. A template is text with {one|of|these}, [list] for a random member of LISTS, and $slots filled from the
# story's context. $Slot with a capital is the same slot with a capital first letter.
# ======================================================================================================================

# kind | where it lives | what it eats | colour | sound | baby | what it can do | legs | size
ANIMALS = [line.split("|") for line in """\
fox|in a den in the forest|berries and mice|red|barks|kit|run fast and hear very well|4|small
bear|in a cave in the mountains|honey, fish and berries|brown|growls|cub|climb trees and catch fish|4|large
rabbit|in a burrow under the meadow|grass and carrots|grey|squeaks|bunny|hop very high|4|small
mouse|in a hole in the wall|seeds and cheese|grey|squeaks|pup|squeeze through tiny holes|4|small
owl|in a hollow tree|mice and beetles|brown|hoots|owlet|see in the dark|2|small
duck|on the pond|water plants and small fish|yellow|quacks|duckling|swim and fly|2|small
frog|beside the pond|flies and worms|green|croaks|tadpole|jump and swim|4|small
cat|in a house with people|fish and meat|black|meows|kitten|climb and walk very quietly|4|small
dog|in a house with people|meat and bones|brown|barks|puppy|smell things from far away|4|small
horse|in a stable on the farm|hay and apples|brown|neighs|foal|run fast and carry riders|4|large
cow|on the farm|grass and hay|white|moos|calf|give milk|4|large
sheep|in the green fields|grass|white|bleats|lamb|grow warm wool|4|small
goat|on the rocky hills|grass and leaves|white|bleats|kid|climb steep rocks|4|small
pig|in a pen on the farm|corn and apples|pink|oinks|piglet|find food under the ground|4|large
hen|in the hen house|corn and seeds|brown|clucks|chick|lay eggs|2|small
squirrel|in the top of an oak tree|nuts and seeds|red|chatters|kit|jump from tree to tree|4|small
hedgehog|under a pile of leaves|beetles and worms|brown|snuffles|hoglet|roll into a ball|4|small
wolf|in the deep forest|meat|grey|howls|cub|run for many hours|4|large
deer|in the quiet woods|leaves and grass|brown|bleats|fawn|run and jump gracefully|4|large
lion|on the warm plains|meat|yellow|roars|cub|roar very loudly|4|large
tiger|in the jungle|meat|orange|roars|cub|swim across wide rivers|4|large
elephant|on the wide plains|leaves and fruit|grey|trumpets|calf|lift heavy things with its trunk|4|large
monkey|in the jungle|bananas and nuts|brown|chatters|infant|swing from branch to branch|4|small
penguin|on the ice near the sea|fish|black and white|honks|chick|swim very well|2|small
turtle|near the river|leaves and small fish|green|hisses|hatchling|hide in its shell|4|small
whale|in the deep ocean|tiny shrimp and fish|blue|sings|calf|hold its breath for a long time|0|large
parrot|in the jungle|fruit and nuts|green|squawks|chick|copy the words of people|2|small
badger|in a sett under the hill|worms and roots|black and white|grunts|cub|dig long tunnels|4|small
beaver|in a lodge on the river|bark and leaves|brown|whines|kit|cut down trees with its teeth|4|small
otter|on the bank of the river|fish and crabs|brown|whistles|pup|swim and play in the water|4|small
bee|in a hive|nectar from flowers|yellow and black|buzzes|larva|make honey|6|small
spider|in a web|flies|black|makes no sound at all|spiderling|spin a web|8|small""".splitlines()]
ANIMAL = {a[0]: a for a in ANIMALS}
PLURALS = {"fox": "foxes", "mouse": "mice", "sheep": "sheep", "deer": "deer", "wolf": "wolves"}
STORY_ANIMALS = [a[0] for a in ANIMALS if a[0] not in ("whale", "spider", "bee")]

GIRLS = """Mia Lily Anna Emma Nora Rosa Ella Clara Sara Lucy Zoe Ruby Maya Alice Grace Eva Lena Daisy Julia Kate Molly Sofia
Amy Jane Mary Amina Yuki Leila""".split()
BOYS = """Tom Ben Max Leo Sam Jack Noah Finn Oscar Peter Hugo Adam Felix Theo Henry Luke Paul Otto Simon Will Alex David Tim
Omar Kenji Ravi Mateo Ali""".split()
PETS_F = "Poppy Willow Hazel Honey Luna Misty Rosie Berry Clover Maple Pearl Tilly".split()
PETS_M = "Pip Bruno Rusty Milo Barney Chip Gus Jasper Monty Rufus Sooty Toffee".split()
JOBS = [line.split("|") for line in """\
baker|bakes bread and cakes|flour
farmer|grows food and looks after animals|a tractor
teacher|helps children learn|books
doctor|helps sick people get well|medicine
gardener|takes care of plants and flowers|a spade
painter|paints pictures|a brush
fisher|catches fish|a net
sailor|works on a ship|ropes
carpenter|makes things from wood|a hammer
cook|makes meals|a big pot
tailor|makes clothes|a needle
clockmaker|makes and repairs clocks|tiny tools
shepherd|looks after sheep|a long stick
miller|turns grain into flour|a millstone
librarian|takes care of books|a catalogue
postman|brings letters and parcels|a bag
pilot|flies planes|a map
firefighter|puts out fires|a hose""".splitlines()]
STORY_JOBS = "baker farmer teacher gardener painter sailor carpenter cook tailor clockmaker shepherd miller librarian".split()

# characters of fairy tales, and where they live
FANTASY = {"princess": "in a castle on the hill", "prince": "in a castle by the lake", "king": "in an old castle",
           "queen": "in a great palace",
           "pirate": "on an old ship", "knight": "in a tower by the sea", "wizard": "in a high tower",
           "witch": "in a hut in the woods",
           "fairy": "in a flower by the [place]", "dragon": "in a cave in the mountains",
           "unicorn": "in a hidden valley",
           "giant": "behind the mountains", "ghost": "in an empty house", "snowman": "in a white garden",
           "robot": "in a workshop"}
GENDER = {"girl": "f", "boy": "m", "princess": "f", "prince": "m", "king": "m", "queen": "f", "wizard": "m",
          "witch": "f",
          "fairy": "f", "snowman": "m"}

LISTS = {name: [w.strip() for w in words.split(",")] for name, words in {
    "size": "little, small, young, tiny",
    "nature": "kind, brave, curious, clever, cheerful, shy, gentle, quiet, friendly, hungry, lazy, playful, careful, proud",
    "good": "kind, brave, clever, patient, gentle, helpful, honest",
    "weather": "sunny, windy, cold, warm, bright, cloudy, quiet, foggy, rainy, beautiful, mild",
    "time": "morning, afternoon, day, evening",
    "season": "spring, summer, autumn, winter",
    "place": "forest, meadow, garden, river, lake, hill, old mill, market, harbour, beach, field, bridge, pond, orchard, "
             "stream, windmill, well, castle, lighthouse",
    "area": "forest, meadow, garden, valley, village, park, orchard, town, woods, fields",
    "home": "a small house near the [place], a tiny cottage by the [place], a village in the valley, a house on the hill, "
            "a little town by the sea, a farm near the [place], a quiet street in the town",
    "colour": "red, blue, green, yellow, white, purple, silver, golden, brown, orange, pink, grey",
    "food": "bread and butter, soup, apple pie, cheese, pancakes, honey cake, porridge, berries, noodles, biscuits, plums, "
            "toast, potatoes, carrot cake, rice pudding, roasted nuts",
    "fruit": "apples, pears, plums, cherries, berries, strawberries, peaches, mushrooms, nuts",
    "flower": "roses, daisies, tulips, sunflowers, bluebells, poppies",
    "tree": "oak, apple, pine, willow, cherry, birch",
    "happy": "happy, glad, cheerful, proud, delighted, pleased",
    "sad": "sad, upset, unhappy",
    "quickly": "quickly, at once, right away, without a word, as fast as $he1 could",
    "laughed": "laughed, smiled, grinned, clapped, cheered",
    "hidden": "under the old bridge, behind a big rock, in the tall grass, under a pile of leaves, beside the stream, "
              "in a hollow tree, behind the garden wall, under the bench, on top of the shed, between two stones, "
              "at the foot of a tree, next to the well, in an empty nest, beside the path",
    "lost": "[colour] scarf, silver bell, [colour] hat, little key, wooden boat, [colour] ball, picture book, gold ring, "
            "toy train, woolly glove, [colour] ribbon, old compass, music box, [colour] umbrella, pocket watch, "
            "[colour] button, straw hat, magnifying glass",
    "gift": "a little bell, a painted box, a warm coat, a silver spoon, a [colour] scarf, a wooden flute, "
            "a box of [fruit], a jar of honey, a book of stories, a paper lantern, "
            "a warm blanket, a little drum, a basket of [fruit], a new hat, a pot of [flower]",
    "sky": "the moon, the stars, the clouds, the setting sun",
}.items()}


def resolve(text, slots, rng):
    """Fills one template: the choices, then the lists and the slots, until nothing is left to fill."""
    for _ in range(40):
        before = text
        text = re.sub(r"\{([^{}]*)\}", lambda m: rng.choice(m[1].split("|")), text)
        if "{" not in text:
            text = re.sub(r"\[(\w+)\]", lambda m: rng.choice(LISTS[m[1]]), text)
            text = re.sub(r"\$([A-Za-z]+\d?)", lambda m: fill(m[1], slots, rng), text)
        if text == before:
            return text
    raise ValueError("template never ends: " + text)


def expand(text, slots, rng):
    """Fills one template and repairs articles and capital letters."""
    text = resolve(text, slots, rng)
    text = re.sub(r"\b([Aa]) (?=(?:[aeiou](?!ni(?:c|f)|ne\b|se))|hour|honest)", r"\1n ", text)
    return re.sub(r"(^|[.!?] +|\n)(\"?)([a-z])", lambda m: m[1] + m[2] + m[3].upper(), text)


def fill(key, slots, rng):
    value = slots[key] if key in slots else slots[key[0].lower() + key[1:]]
    if isinstance(value, list):
        value = rng.choice(value)
    return value[0].upper() + value[1:] if key[0].isupper() and key not in slots else value


def made_up_name(rng):
    syllables = "ba be bi bo ca da de di do el fa fi ga ha jo ka ki la li lo lu ma me mi mo na ni no pa pe po ra re ri ro " \
                "sa so ta ti to va vi za zo qua tra bri flo gre sta".split()
    name = "".join(rng.choice(syllables) for _ in range(rng.choice((2, 2, 3))))
    return name.capitalize() + rng.choice(["", "", "n", "s", "l", "x"])


def character(number, rng, kind=None, avoid=None, person=None, named=False):
    """Slots of one character: $n1 a short name, $intro1 the first mention, $the1, $he1, $him1, $his1, $self1.
    `avoid` is the other character of the story: a different kind, a different name, mostly the other gender."""
    female = rng.random() < 0.5 if avoid is None or rng.random() < 0.2 else not avoid["female"]
    while kind is None or (avoid and kind == avoid["kind"]):
        pick = rng.random() * (0.5 if person else 1.0)
        kind = (("girl" if female else "boy") if pick < 0.27 else rng.choice(STORY_JOBS) if pick < 0.4 else
                rng.choice(list(FANTASY)) if pick < 0.5 else rng.choice(STORY_ANIMALS))
    female = {"f": True, "m": False}.get(GENDER.get(kind), female)
    person = kind not in ANIMAL
    name = None
    if named or rng.random() < (0.85 if kind in ("girl", "boy") else 0.6):
        pool = (GIRLS if female else BOYS) if person else (PETS_F if female else PETS_M)
        name = made_up_name(rng) if rng.random() < 0.08 else rng.choice(pool)
        if avoid and name == avoid["name"]:
            name = None
    grown_up = kind not in ANIMAL and kind not in ("girl", "boy")
    size = rng.choice(["old", "young", "kind", "clever", "cheerful"] if grown_up else LISTS["size"])
    the = "the " + kind
    n = str(number)
    named = [" named ", " called ", " whose name was "]
    return {
        "kind": kind, "name": name, "female": female, "person": person, "size": size,
        "slots": {
            "n" + n: [name] * 3 + [the] if name else the,
            "intro" + n: (["a " + size + " " + kind + rng.choice(named) + name,
                           "a " + kind + rng.choice(named[:2]) + name]
                          if name else ["a " + size + " " + kind, "a " + rng.choice(LISTS["nature"]) + " " + kind]),
            "the" + n: the, "kind" + n: kind, "size" + n: size, "name" + n: name or the,
            "he" + n: "she" if female else "he", "him" + n: "her" if female else "him",
            "his" + n: "her" if female else "his", "self" + n: "herself" if female else "himself",
            "home" + n: ANIMAL[kind][1] if kind in ANIMAL else FANTASY.get(kind, "in [home]"),
            "call" + n: name or ("little " + kind if size != "old" else "my friend"),
        },
    }


# A plot: topic, its own word lists, then one step per line. "?" marks a step that may be left out. An empty line is a
# paragraph. Character 1 has been introduced before; character 2 comes in with $intro2.
PLOTS = [
("a lost $obj", {"obj": ["[lost]"]}, """\
{$N1 had a $obj that $he1 loved very much|$His1 favourite thing in the world was a $obj|$N1 took a $obj everywhere $he1 went}. {But one [time]|But then one [weather] day}{, it was gone|, $he1 could not find it}.
{$N1 looked under the bed and behind the door|$He1 looked in the kitchen, in the garden and behind the shed|$He1 searched the whole house}, but {it was not there|the $obj was nowhere to be seen|$he1 found only dust}.
?{"Where did I leave it?" $he1 asked.|"I had it this morning," $he1 said.|"Oh no, what shall I do?" $he1 cried.} {$He1 felt very [sad].|$He1 sat down on a stone and sighed.|A tear ran down $his1 nose.}

{Just then|After a while|A little later}, $intro2 came {by|along|down the path}. "{What is wrong|Why are you so sad|What are you looking for}?" asked $n2.
{"I have lost my $obj," said $n1.|"My $obj is gone," $n1 {said|answered} {softly|quietly}.} {"I will help you look for it," said $n2.|"Do not worry," said $n2. "We will find it together."|"Two can search better than one," said $n2.}
{They looked|Together they looked|So they searched} {by the river|in the garden|along the road}, {near the old well|under the trees|behind the barn} and {in the long grass|around the pond|at the edge of the field}.
?{They asked everyone they met|They walked until their feet hurt|They did not give up}, {but nobody had seen it|and the sun began to sink|and slowly it grew dark}.
{At last|Suddenly|Finally}, $n2 {saw something shine|noticed something|pointed at something} [hidden]. {It was the $obj!|"Is this yours?" $he2 asked. It was the $obj!}
{$N1 jumped for joy.|$N1 was so [happy] that $he1 danced.|$N1 hugged $n2.} "Thank you, my friend," $he1 said.
{From that day on, $he1 always put the $obj in a safe place.|From then on, the two were the best of friends.|That night, $he1 slept with the $obj beside $his1 pillow.}"""),
("a storm", {}, """\
One [time], {dark clouds filled the sky|the wind began to blow|the sky turned grey and heavy}. {$N1 was far from home|$N1 was picking [fruit] in the woods|$N1 was walking by the [place]}.
{Soon|After a few minutes|Before long}, {the rain came down hard|it began to rain|big drops fell on the ground}. {Thunder rolled over the hills.|Lightning flashed above the trees.|The path turned into mud.}
{$N1 was afraid|$N1 was wet and cold|$N1 shivered}, so $he1 {ran to look for a dry place|hid under a big [tree] tree|hurried along the path}.
?{"I wish I were at home," $he1 said.|"Please stop, rain," $he1 whispered.|"I must be brave," $he1 told $self1.}

Then $he1 saw {a light|a small light|a warm light} {between the trees|in the distance|behind the hill}. It {was|came from} the house of $intro2. {$N1 knocked on the door.|$He1 knocked three times.}
"{Come in|Come inside}, {you are all wet|you must be cold}," said $n2. {$He2 gave $n1 {a blanket and a bowl of hot soup|a dry towel and a cup of tea|some [food] and a seat by the fire}.}
They {sat by the fire|sat at the window|listened to the rain} and {told stories|talked for hours|played games} until the storm was over.
{When the rain stopped, a rainbow stood over the [place].|In the morning, the sun was shining again.|Later the clouds went away and the stars came out.}
{"Thank you for your kindness," said $n1.|"You can visit me whenever you like," said $n2.|"Storms are not so bad with a friend," said $n1.}
?{And whenever it rained after that, $n1 thought of the warm fire and smiled.|From then on, $n1 was not afraid of storms.}"""),
("sharing food", {"dish": ["loaf of bread", "apple pie", "honey cake", "basket of berries", "pot of soup", "plate of pancakes"]}, """\
One [weather] [time], $n1 {made|had} a big $dish. {It smelled wonderful.|It was still warm.|It was enough for a whole family.} {"This is all mine," $he1 {said|thought}.|"I will eat it all by myself," $he1 said.}
{Soon|Just then|A moment later}, $intro2 {came to the door|walked past the window|stopped at the gate}. "{That smells good|What a lovely $dish|I have not eaten all day}," said $n2. "May I have a little?"
{"No," said $n1. "It is mine."|"There is not enough for two," said $n1.|$N1 shook $his1 head and closed the door.} {$N2 went away [sad].|So $n2 walked away with an empty stomach.|$N2 said nothing and went home.}

{$N1 began to eat, but the food did not taste good.|$N1 sat alone at the table. It was very quiet.|$N1 ate and ate until $his1 stomach hurt.} {"It is no fun to eat alone," $he1 thought.|$He1 felt {sorry|bad} about what $he1 had done.}
So $he1 {ran after $n2|went to find $n2|hurried down the road}. {"Wait!" $he1 called.|"Please come back!" $he1 shouted.} "I am sorry. {Let us eat together|Please share it with me|There is enough for both of us}."
$N2 {smiled|was [happy]|forgave $him1}, and they {sat down|ate together} {under a tree|at the table|in the sun}. {Now it tasted better than ever.|They talked and laughed until it was dark.|Soon there was nothing left but crumbs.}
{$N1 learned that food tastes best when it is shared.|After that day, $n1 always kept a piece for a friend.|The next day, $n2 came back with a basket of [fruit] to share.}"""),
("a new friend", {"game": ["hide and seek", "catch", "ball", "tag"]}, """\
{$N1 was new in the [area] and had no friends|$N1 often played alone|$N1 wished for a friend}. {Every day, $he1 watched the others play.|"I wish someone would play with me," $he1 said.|It was quiet at home, and the days were long.}
One [weather] [time], $n1 {went to|walked to|sat near} the [place] and {met|saw} $intro2. {$N2 was sitting alone on a {bench|rock|log}.|$N2 was looking at the water.|$N2 was throwing stones into a puddle.}
{$N1 was shy at first.|$N1 took a deep breath.|$N1 waited for a moment.} Then $he1 said, "{Hello, my name is $name1.|Hello, may I sit with you?|Would you like to play with me?}"
{$N2 looked up and smiled.|$N2 was surprised.|$N2 nodded.} "{Yes, I would like that|Of course|I was hoping someone would ask}," $he2 said.

They played $game {all afternoon|until the sun went down|for hours}. {They climbed trees and ran through the grass.|They laughed so much that they had to sit down.|They shared a bag of [fruit].}
{When it was time to go home, they did not want to say goodbye.|In the evening, $n1 walked home with a smile.|"Will you come back tomorrow?" asked $n2. "I will," said $n1.}
{From that day on, they met every morning.|After that, neither of them was ever lonely again.|They are still best friends today.}"""),
("learning to $skill", {"skill": ["swim", "dance", "sing", "paint", "bake bread", "ride a bicycle", "play the flute", "skate", "juggle"]}, """\
$N1 wanted to learn to $skill. {All $his1 friends could do it|Everyone in the family could $skill|It looked so easy}, but {$he1 did not know how|$he1 had never tried|$he1 was afraid to try}.
{The first time, it went wrong.|At first, it was very hard.|On the first day, nothing worked.} {$He1 wanted to give up.|"I will never learn this," $he1 said.|$His1 face turned red, and $he1 almost cried.}
{$Intro2 had been watching.|Then $intro2 came to help.|A friend of $his1, $intro2, saw it all.} "{Try again|Do not give up|Nobody can do it the first time}," said $n2. "{I will show you how|Take your time|I needed many days to learn it, too}."
So $n1 {tried again|practised every day|listened carefully and tried once more}. {Little by little|Day after day|Slowly}, {it became easier|it went better|$he1 made fewer mistakes}.
?{Sometimes it went well, and sometimes it did not.|$N2 sat beside $him1 and gave good advice.|Even in the rain, $he1 did not stop.}

{After a week|After many days|One fine morning}, $n1 could $skill {all by $self1|as well as anyone|without any help}. {"I can do it!" $he1 shouted.|"Look at me!" $he1 called.}
{Everyone [laughed].|$N2 clapped $his2 hands.|$His1 mother was very proud.} {"I knew you could do it," said $n2.|$N1 thanked $n2 for being so patient.}
{And the next day, $n1 began to teach someone else.|$N1 learned that practice makes things easier.|$N1 had learned that it pays to be patient.|That evening, they had a little party.}"""),
("being afraid of the dark", {}, """\
$N1 was afraid of the dark. {Every night, $he1 saw strange shapes on the wall.|When the lamp went out, $he1 hid under the blanket.|$He1 never went outside after sunset.}
One night, $he1 heard a noise. {Tap, tap, tap.|Scratch, scratch.|It was a soft, slow sound.} {"Who is there?" $he1 whispered.|$His1 heart beat fast.} {Nobody answered.|It came from the window.|It came from behind the door.}
{$N1 wanted to hide, but $he1 was also curious.|$N1 took a candle and held it high.|"I must be brave," $he1 said.} {Slowly|Step by step|Very carefully}, $he1 {went to the window|opened the door|looked outside}.
There sat $intro2, {cold and lost|shaking with fear|all alone}. "{I cannot find my way home|It is so dark, and I am afraid|Please help me}," said $n2.

"{Do not be afraid|I was afraid, too|Come with me}," said $n1. {$He1 took the candle and led $n2 home.|Together they followed the light of the moon.|They held hands and walked along the path.}
{On the way, they counted the stars.|The stars shone above them like little lamps.|An owl called, and they both laughed.} {The night was not so bad after all.|The dark was soft and quiet.}
{Since that night, $n1 has not been afraid of the dark.|Now $n1 likes the night, because that is when the stars come out.|$N1 went to bed and slept well until morning.}"""),
("a broken $thing", {"thing": ["vase", "window", "cup", "clock", "lantern", "plate"]}, """\
One [time], $n1 was {playing in the house|running through the room|throwing a ball}. {There was a loud crash.|Crash!|Something fell to the floor.} The $thing was broken. It belonged to $intro2.
{$N1 was frightened.|$N1 did not know what to do.|$N1 looked at the pieces and felt cold.} {"Maybe nobody will notice," $he1 thought.|"I could say it was the wind," $he1 thought.} $He1 hid the pieces {under the bed|in a box|behind the door}.
{But $he1 could not sleep that night.|But at dinner, $he1 could not eat a thing.|All day long, $he1 thought about the $thing.} {"I must tell the truth," $he1 said at last.|$He1 knew that hiding it was wrong.}

So $n1 went to $n2 and told $him2 everything. "{I broke your $thing|It was me who broke the $thing}," $he1 said. "I am very sorry."
$N2 was quiet for a moment. Then $he2 {smiled|nodded}. "{Thank you for telling me the truth|It was only a $thing|That was very brave of you}," $he2 said. "{We can mend it together|Let us try to fix it|Next time, be more careful}."
{They took some glue and worked all afternoon.|Piece by piece, they put it together.|They found all the pieces and mended it.} {It was not perfect, but it was good enough.|You could hardly see the cracks.}
{That night, $n1 slept well.|$N1 felt light and [happy] again.|$N1 never forgot that the truth is always best.}"""),
("a garden", {"plant": ["sunflower", "pumpkin", "bean", "tomato plant", "rose", "apple tree"]}, """\
{In spring|One spring morning|When the snow had melted}, $n1 {found a seed|was given a tiny seed|bought a seed at the market}. {$He1 put it into the ground|$He1 made a hole and dropped it in|$He1 planted it in the garden} and {gave it some water|covered it with earth}.
{Every day, $n1 came to look.|The next morning, $he1 looked, but there was nothing to see.|For many days, nothing happened.} {"Why does it not grow?" $he1 asked.|"Perhaps it is asleep," $he1 said.}
"{You must be patient|Good things take time|Seeds need sun, water and time}," said $intro2 {who lived next door|from the other side of the hedge|who knew a lot about plants}.
So $n1 {waited|watered it every day|sat beside it and sang to it}. {The rain fell and the sun shone.|The days grew warm and long.|The wind blew, and the bees hummed.}

Then one morning, {a green leaf came out of the earth|there was a tiny green leaf}. {It grew and grew|Every day it grew a little more|Week by week, it became taller}, until it was {a big $plant|a beautiful $plant|the tallest $plant in the whole village}.
{"Look what I have grown!" said $n1.|$N1 called all $his1 friends to see it.|$N1 danced around it.} {Everyone came to admire it.|$N2 was amazed.|"You took good care of it," said $n2.}
{In autumn, $he1 kept the seeds for the next year.|$N1 gave some of it to $n2.|And $n1 understood that it pays to be patient.}"""),
("a race", {"prize": ["a golden cup", "a big cake", "a blue ribbon", "a basket of fruit"]}, """\
Every [season], there was a race {around the lake|to the old mill|through the forest|over the hill}. The prize was $prize. {"I will win," said $intro2.|Everyone thought that $intro2 would win.} "{I am the fastest of all|Nobody is as fast as I am}," said $n2.
$N1 wanted to run, too. {"You are too slow," $n2 laughed.|Some of the others laughed at $him1.} {But $n1 did not mind.|"I will try my best," said $n1.|$N1 said nothing and got ready.}
{One, two, three, go!|The bell rang, and the race began.|A whistle blew, and off they went.} $N2 ran far ahead. {$N1 ran slowly but did not stop.|$N1 kept a steady pace.|$N1 came last.}
Halfway, $n2 {stopped to rest under a tree and fell asleep|tripped over a root and hurt $his2 foot|took the wrong path and got stuck in the mud}.

{When $n1 came by, $he1 saw what had happened.|A little later, $n1 came to the same place.} {$N1 could have run on|$N1 could have won easily}, but $he1 {stopped|turned around}. "{Let me help you," said $n1.|Are you all right?" asked $n1.|Come on, get up!" said $n1.}
{$N2 was ashamed.|$N2 looked down.|"Thank you," said $n2 in a small voice.} {Together they walked to the end of the road.|They crossed the line side by side.|Then they ran the last part together.}
{"We shall share the prize," said $n2.|Both of them got a prize.|Everyone [laughed] and called both their names.} {And $n2 never laughed at anyone again.|From that day on, they were friends.|They both learned that it is more fun to win together.|Everyone in the village talked about it for a long time.}"""),
("a birthday", {}, """\
{It was $his1 birthday|Tomorrow was $his1 birthday|$N1 woke up early, because it was $his1 birthday}. {But nobody said anything about it.|But everyone seemed to have forgotten it.|$He1 waited for a card, but none came.}
{$N1 went to see $intro2.|First, $n1 visited $intro2.|Then $n1 met $intro2.} "{What day is it today|Do you know what day it is}?" asked $n1. {"It is just a normal day," said $n2.|"I am busy," said $n2 and closed the door.|"I have no time now," said $n2.}
$N1 was very [sad]. {$He1 walked alone to the [place].|$He1 went for a long walk.|$He1 sat by the river and looked at the water.} {"Nobody remembers me," $he1 said.|"Maybe they do not like me anymore," $he1 thought.}

{In the evening, $n1 came home.|When it grew dark, $he1 went home.} {The house was dark.|Everything was quiet.|All the lights were out.} {$He1 opened the door.|Slowly, $he1 went in.} "Surprise!" {shouted all $his1 friends|cried everyone}.
There was {a big cake with candles|a cake with white sugar on top|a table full of good things}. {There were [colour] balloons and paper stars.|There was music, too.} {$N2 gave $him1 [gift].|From $n2, $he1 got [gift].}
{"We did not forget you," said $n2. "We wanted to surprise you."|"Did you really think we would forget?" asked $n2.} {It was the best birthday of all.|$N1 laughed until $he1 cried.|They danced until midnight.}"""),
("the snow", {}, """\
{In the night, snow had fallen.|One winter morning, everything was white.|It had snowed all night.} {The roofs, the trees and the road were white.|The whole [place] was quiet and bright.|It looked like sugar on a cake.}
$N1 {put on a warm coat and went outside|ran out of the door|could not wait to go outside}. {The air was cold, and $his1 breath made little clouds.|The snow was soft and deep.|$His1 feet made small holes in the snow.}
{Near the [place], $he1 met $intro2.|Soon $intro2 came to play.|Outside, $intro2 was already waiting.} "{Let us build a snowman!|Shall we make a snowman?|Come, we can make a snowman!}" said $n2.
They {rolled three big balls|made a big ball and a small one|worked all morning}. {They used a carrot for the nose|They gave it two black stones for eyes|They put an old hat on its head} and {a stick for each arm|a row of buttons down the front|a [colour] scarf around its neck}.
?{Then they threw snowballs at each other.|After that, they went down the hill on a sledge.|Then they lay down and made angels in the snow.}

{When their hands were cold|In the afternoon|When it got dark}, they went inside and drank {hot chocolate|warm milk|hot tea with honey}. {Through the window, they could see the snowman.|The snowman looked at them through the window.}
{"I hope he is not cold," said $n1.|"Good night, snowman," said $n1.|"I hope the snow stays forever," said $n1.} {"Snowmen like the cold," said $n2.|"I am sure he is happy out there," said $n2.}
{When spring came, the snowman was gone, but the hat lay in the grass.|The next morning, the snowman was still there, and he seemed to smile.|It was a perfect winter day.}"""),
("a lost child", {"baby": ["duckling", "kitten", "lamb", "puppy", "chick", "owlet"]}, """\
One [weather] [time], $n1 heard {a small voice|someone crying|a soft sound} {behind a bush|near the [place]|in the grass}. It was a little $baby. "{I have lost my mother|I cannot find my way home|I want to go home}," said the $baby.
"{Do not cry|Do not be afraid}," said $n1. "{I will help you|We will find her together|I will take you home}." {The $baby dried its tears.|The $baby stopped crying.|The $baby came a little closer.}
First, they went to {the river|the farm|the old bridge}. There they asked $intro2. "{Have you seen the mother of this $baby|Do you know where this $baby lives}?" asked $n1. "{No, I am sorry|I have not seen her}," said $n2. "{Try the [place]|Ask at the [place]|Look near the [place]}."
So they walked on. {The way was long, and the $baby grew tired.|The $baby could not walk any further.|The sun was hot, and they had to rest.} {$N1 carried it on $his1 back.|$N1 gave it some water.|$N1 sang a song to cheer it up.}

{At last|In the end|After a long walk}, they heard someone call. {"There you are!" cried the mother.|"My child, my child!" cried the mother.} The $baby {ran to her|jumped for joy}. {"I looked for you everywhere," said the mother.|The mother held it tight.}
"How can I thank you?" she asked $n1. {"I am just glad that you found each other," said $n1.|"A smile is enough," said $n1.|"You do not have to," said $n1.} {$N1 went home with a warm heart.|They waved until $n1 was out of sight.|And whenever they met, they greeted each other like family.}"""),
("the market", {"buy": ["a new hat", "a loaf of bread", "some flour", "a warm coat", "a red kite", "a pair of shoes"]}, """\
{On market day|One Saturday morning|Early in the morning}, $n1 {went to the market|walked to the town}. $He1 had {three silver coins|a little money|ten copper coins} in $his1 pocket and wanted to buy $buy.
The market was {full of people|loud and colourful|busy}. {There were baskets of [fruit] and jars of honey.|People sold fish, cheese and [flower].|It smelled of bread and [fruit].} {Everyone was talking at once.|A man played the violin.}
At the corner sat $intro2. {$He2 looked tired and hungry.|$He2 had nothing to eat.|$His2 clothes were thin and old.} "{Can you help me?" asked $n2.|Could you spare a coin?" asked $n2.|I have not eaten since yesterday," said $n2.}
{$N1 thought for a while.|$N1 looked at the coins in $his1 hand.|$N1 remembered what $his1 mother had told $him1.} Then $he1 {gave $n2 all the money|bought some [food] for $n2|shared everything with $n2}. {Now there was no money left for $self1.|So $he1 could not buy $buy.}

{$N1 went home with empty hands, but $he1 was not sad.|On the way home, $he1 did not feel sad at all.} {The next day|A week later|Some days later}, there was {a knock at the door|a parcel at the door}. {It was $n2.|$N2 had not forgotten.} "{You helped me when I had nothing|You were kind to me}," said $n2. "{This is for you|Now I want to help you}."
{It was [gift], and it was beautiful.|$N1 could not believe it. It was [gift].} {"Thank you," said $n1. "But I did not help you to get something back."|They sat down together and drank tea.} {And so $n1 saw that kindness always comes back.|It is good to share, even when you have little.|They have been friends ever since.}"""),
("a boat on the river", {"boat": ["raft", "boat", "little ship"]}, """\
$N1 {dreamed of the sea|had always wanted to sail|wanted to see what was behind the [place]}. So $he1 built a $boat {from old wood|from planks and rope|out of a wooden box}. {It took three days.|It was hard work.|The sail was an old [colour] sheet.}
{"May I come with you?" asked $intro2.|$Intro2 wanted to come, too.} {"Of course," said $n1.|"There is room for two," said $n1.} {They packed bread and apples.|They took a map, a lamp and some [food].|They pushed the $boat into the water.}
{The river was calm|The wind was good|The water sparkled in the sun}, and they {sailed past fields and villages|floated under the bridges|waved to everyone on the bank}. {Fish jumped out of the water.|A heron watched them.|They sang all the songs they knew.}
{Suddenly|Then|After an hour}, {the $boat hit a rock|they heard a crack}. {Water came in through a hole.|The $boat began to sink.} "{What shall we do?|We are sinking!|Help!}" cried $n2.

{"Stay calm," said $n1.|"Do not be afraid," said $n1.} {$He1 pushed $his1 scarf into the hole|$He1 took a cup and threw the water out|$He1 found a piece of wood and closed the hole}, and $n2 {steered to the bank|rowed as hard as $he2 could|held the rope}. {Soon they were safe on land.|At last, they reached an island.}
{They dried their clothes by a fire.|They lay in the warm grass and rested.|They repaired the $boat and ate the last apples.} {"What an adventure!" said $n2.|"We make a good team," said $n1.} {The next day, they sailed home.|In the evening, they came home, tired and [happy].|And the next summer, they built a better one.}"""),
("a star", {}, """\
{Every night, $n1 looked at the stars.|One clear night, $n1 could not sleep.|$N1 loved the night sky.} {$He1 tried to count them, but there were too many.|The brightest one stood above the [place].|The stars looked like tiny lamps.}
One night, a star fell from the sky. {It came down behind the hill.|It fell into the garden.|It landed softly in the grass.} $N1 {ran to see it|went outside in bare feet|took a lantern and followed the light}.
The star was {small and silver|warm and bright|no bigger than an apple}. "{Please help me|I want to go home|I fell out of the sky}," said the star. "{I do not belong here|The night is dark without me|My brothers and sisters are waiting}."
{$N1 thought hard.|$N1 did not know how to help.} Then $he1 asked $intro2. "{Climb the highest hill|Wait for the wind|Throw it as high as you can}," said $n2.

So they {climbed the highest hill|carried the star up the mountain|walked all night}. {The wind was strong up there.|The moon was very near.} $N1 held the star up high, and {the wind lifted it|it flew out of $his1 hands|it rose slowly into the sky}.
{"Thank you!" called the star.|Soon it was shining in its old place.|It grew smaller and smaller, until it was a star like the others.} {"I will always shine for you," it said.|$N1 waved until $his1 arm was tired.}
{Since then, one star shines a little brighter than the rest.|And every night, it winks at $n1.|When $n1 looks up, $he1 knows that $he1 has a friend in the sky.}"""),
("music", {"inst": ["flute", "violin", "drum", "guitar", "trumpet", "harp"]}, """\
$N1 had an old $inst. {It had belonged to $his1 grandfather.|$He1 had found it in the attic.|It was a present from $his1 aunt.} $He1 played it {every evening|from morning to night|whenever $he1 was alone}, but {it did not sound good|nobody wanted to listen|the neighbours complained}.
"{That is too loud|Please stop that noise|My ears hurt}," said $n2, $intro2 {from the house next door|who lived nearby}. {$N1 was hurt.|$N1 felt ashamed.|So $n1 put the $inst away.} {From then on, $he1 played only in the forest.|"I will practise where nobody can hear me," $he1 said.}
{Weeks went by.|The summer passed.|Every day, $he1 played for the birds.} {The birds listened and sang along.|Slowly, the notes became soft and clear.|The music became more and more beautiful.}

{One evening|One day}, $n2 {was walking through the forest|had lost the way in the fog|felt very sad}. {Then $he2 heard music.|Far away, someone was playing.} {It was so lovely that $he2 stood still.|$He2 followed the sound.|It made $him2 forget all sorrow.}
"{Who plays so beautifully|Where does this music come from}?" $he2 asked. {Behind the trees sat $n1 with the $inst.|It was $n1!} "{I am sorry for what I said|I was wrong about you}," said $n2. "{Please play for all of us|Will you play one more song}?"
{That Sunday, $n1 played in the village, and everyone danced.|$N1 played until the moon came up.|So $n1 played, and this time everybody listened.} {And nobody ever complained again.|$N1 had never been so [happy].}"""),
("a sandcastle", {}, """\
{One hot summer day|In the summer|On a [weather] [time]}, $n1 went to the beach. {The sea was blue, and the sand was warm.|The waves rolled in and out.|Seagulls cried above the water.} {"I will build the biggest castle in the world," $he1 said.|$He1 wanted to build a castle.}
$He1 {filled a bucket with wet sand|dug with both hands|worked the whole morning} and {made four towers|built a high wall|dug a deep ditch}. {On top, $he1 put a [colour] flag.|$He1 used shells for the windows.|A stick became the bridge.}
Then a big wave came. {Splash!|It rolled over the beach.} {It washed the castle away.|In a moment, the castle was gone.|Only a little hill of sand was left.} {$N1 began to cry.|"All my work!" cried $n1.|$N1 was very [sad].}

$Intro2 {had seen it|came over|sat down beside $him1}. "{It was a lovely castle|The sea takes everything|Do not be sad}," said $n2. "{Let us build a new one|I will help you to build another one}, {a little further from the water|where the waves cannot reach it}."
{So they built a new castle together.|They worked side by side.} {It was even bigger than the first.|It had six towers and a gate.|It had a tower for each of them.} {They decorated it with shells and [colour] stones.|They dug a canal all around it.}
{When the sun went down, the castle was still standing.|This time, the waves could not reach it.} {"Two builders are better than one," said $n1.|"Tomorrow we will build a whole city," said $n2.} {They looked at [sky] and ate [food].|They walked home with sand in their shoes.}"""),
("a sick friend", {}, """\
One [time], $n1 {heard|was told} that a friend was ill. It was $intro2. {$N2 had a cold|$N2 had a fever|$N2 had a sore throat} and {had to stay in bed|could not go out to play|felt weak and tired}.
"{I must do something|I will cheer my friend up|Nobody should be sick and alone}," said $n1. {$He1 went into the kitchen and made a pot of soup.|$He1 picked some [flower] and made hot soup.|$He1 put [food] and some [fruit] into a basket.}
{It was a long way|The path was steep|It was raining}, but $n1 {did not mind|went on|held the basket tight}. {Soon $he1 knocked at the door.|At noon, $he1 stood in front of the house.}

"{Who is there?" asked|Come in," said} $n2 in a weak voice. {$N1 came in and sat down beside the bed.|$N1 opened the window and let in fresh air.} "{I have brought you something|This will make you feel better}," $he1 said.
{$N2 ate the soup, and $his2 cheeks became pink again.|$N2 smiled for the first time that day.|$N2 took a spoon and tried it. It was delicious.} {Then $n1 read a story to $him2.|$N1 told a funny story, and they both laughed.|They played cards until the evening.}
{"You are the best medicine," said $n2.|"Thank you for coming," said $n2.|"I feel better already," said $n2.} {After three days, $n2 was well again.|The next week, $n2 could play outside again.} {And when $n1 caught a cold, it was $n2 who brought the soup.|}"""),
("a treasure map", {}, """\
{In an old book|In the attic|In a bottle on the beach}, $n1 found a map. {There was a [colour] cross on it.|It showed the [place] and a path.|The paper was yellow and torn.} "{A treasure|This must be a treasure map}!" $he1 {said|cried}.
{$He1 showed it to $intro2.|$He1 ran to tell $intro2.} {"Let us find it," said $n2.|"I will bring a spade," said $n2.|"It may be dangerous," said $n2, "but I will come with you."}
They walked {over the bridge and through the forest|past the old mill|along the river}. {Then they climbed the hill.|They had to cross a stream.|Twice they lost the way.} {The map said: ten steps to the north.|"Now ten steps to the left," read $n1.|Near an old [tree] tree, they stopped.}
{They began to dig.|They dug and dug.|The ground was hard, and they took turns.} {After an hour, the spade hit something.|Suddenly there was a sound of metal.} It was {an old wooden box|a rusty chest|a small iron box}.

{Their hands were shaking.|They held their breath.|Slowly, they opened it.} {There was no gold inside.|It was not full of gold.} Instead, there {was a letter and some old toys|were two cups and a note|was a picture of two children}. {"To whoever finds this," it said, "the best treasure is a good friend."|The note said: "Share a cup of tea with a friend."}
{$N1 and $n2 looked at each other and laughed.|For a moment they were disappointed, but then they smiled.} {They put something of their own into the box and buried it again.|"The letter is right," said $n2.|They took the map home and hung it on the wall.}
{It had been a wonderful day.|Perhaps someone else will find it one day.|And that was the beginning of many adventures.}"""),
("a letter from grandmother", {}, """\
One [time], {a letter came for $n1|the postman brought a letter for $n1}. It was from $his1 grandmother. "{Come and visit me|Please come to see me}," she wrote. "{The [fruit] are ripe|I have a surprise for you|The garden is full of [flower]}."
$N1 {packed a small bag|put on $his1 best coat|was so excited that $he1 could not sleep}. {The next morning, $he1 took the train.|The next day, $he1 set off early.|$He1 walked through the [place] and over the hill.}
On the way, $he1 met $intro2. "{Where are you going|Why are you in such a hurry}?" asked $n2. "{To my grandmother|I am going to see my grandmother}," said $n1. {"May I come along?" asked $n2.|"Be careful in the forest," said $n2.|"Then take these [flower] for her," said $n2.}

{Grandmother was standing at the gate.|Grandmother waved from the window.|The house smelled of cake.} {She gave $n1 a big hug.|"How you have grown!" she said.|"There you are at last," she said.} {Then she showed $him1 the surprise.|"Now close your eyes," she said.} {It was [gift].|In her hands was [gift].}
{They picked [fruit] and made jam.|They baked a cake and sat in the garden.|In the evening, she told stories from long ago.} {$N1 listened until $his1 eyes fell shut.|$N1 wanted to stay forever.}
{When $he1 had to go home, grandmother gave $him1 a jar of jam.|"Come back soon," said grandmother.|And every week after that, $n1 wrote her a letter.}"""),
("the fog", {}, """\
{High above the sea stood a lighthouse.|On a rock in the sea stood a lighthouse.} {$N1 took care of the lamp.|Every evening, $n1 lit the lamp.} {The light told the ships where the rocks were.|Without the light, the ships could not find the harbour.}
One evening, thick fog came from the sea. {Nobody could see anything.|It was like a grey wall.|Even the gulls stayed at home.} {And then the lamp went out.|Just then, the lamp broke.} "{There is a ship out there|The ship will hit the rocks}!" cried $n1.
{$N1 ran down the stairs|$N1 thought quickly} and called $intro2. {"We need a light," said $n1.|"What can we do?" asked $n2.} {"Let us make a big fire," said $n2.|"If they cannot see us, they must hear us," said $n1.}

{They carried wood to the rock and lit a fire.|They rang the big bell as loudly as they could.|They took pots and pans and made a terrible noise.} {The captain saw the light.|The sailors heard it and turned the ship around.|On the ship, someone shouted, "Land ahead!"}
{The ship passed the rocks and came safely into the harbour.|Slowly, the ship found its way.} {The next morning, the captain came to thank them.|All the sailors were safe.} "{You have saved us all|We owe you our lives}," said the captain. {He gave them [gift].|He invited them on board for breakfast.}
{The lamp was soon repaired.|Since then, there has always been a second lamp.} {And $n1 and $n2 watched over the sea together.|From then on, $n2 came to help every time the fog rolled in.}"""),
("a bakery without flour", {}, """\
{Early one morning|One [season] morning}, $n1 wanted to bake {bread for the whole village|a cake for the feast|biscuits for the children}. But {the flour was gone|there was no flour left|the bag of flour was empty}. {"How can I bake without flour?" $he1 asked.|"What shall I do now?" said $n1.}
{$He1 went to the mill.|$He1 walked to the old mill by the river.} {But the mill stood still.|The big wheel did not turn.} There $he1 found $intro2. "{There is no wind today|A branch is stuck in the wheel|The wheel is broken}," said $n2. {"I am not strong enough to fix it alone."|"So I cannot make any flour."}
"{Let me help you|Two are stronger than one}," said $n1. {They pulled and pushed.|They took a rope and pulled together.|They worked until their arms were tired.} {Crack! The wheel began to turn.|At last, the wheel moved again.}

{Soon there was fresh white flour.|Before noon, they had three bags of flour.} {$N2 gave one bag to $n1.|"Take as much as you need," said $n2.} {$N1 hurried home and lit the oven.|Back at home, the oven was soon hot.}
{The smell of fresh bread filled the street.|By the evening, everything was ready.|People came from every house.} {And the first piece was for $n2.|$N1 gave the biggest piece to $n2.|Everyone thanked $n1 and $n2.}
{"It is the best I have ever eaten," said $n2.|They ate it warm, with butter and honey.} {And so they learned that friends should help each other.|It was a feast that nobody forgot.}"""),
("a stubborn $pet", {"pet": ["donkey", "goat", "old horse"]}, """\
$N1 had a $pet that never did what it was told. {When $he1 said "go", it stood still.|When $he1 pulled, it sat down.} {One day, $n1 had to bring [fruit] to the town.|One [weather] [time], they had to cross the bridge.} {But the $pet would not move.|In the middle of the road, it stopped.}
{$N1 pulled and pushed.|$N1 begged and shouted.|$N1 tried everything.} {Nothing helped.|The $pet only looked at the sky.} Then $intro2 came along. {"Pull its tail," said $n2.|"Give it a good push," said $n2.} {But that did not help either.|The $pet just shook its head.}
{"Perhaps it is afraid," said $n2.|"Perhaps it is hungry," said $n2.|"Have you ever asked it nicely?" asked $n2.} {$N1 had never thought of that.|$N1 was surprised.} {$He1 gently patted the $pet and gave it an apple.|$He1 spoke softly and held out a carrot.}

{And look, it began to walk!|The $pet pricked up its ears and followed $him1.} {They crossed the bridge without any trouble.|It walked all the way to the town.} {"Kind words work better than a stick," said $n2.|"So that is the secret," said $n1 and laughed.}
{From that day on, $n1 always had an apple in $his1 pocket.|From then on, $n1 and the $pet were good friends.|And the $pet was never stubborn again, or at least not very often.}"""),
("a magic $obj", {"obj": ["stone", "ring", "pot", "feather", "mirror", "pair of shoes"]}, """\
One [time], while $n1 was {walking by the [place]|cleaning the attic|digging in the garden}, $he1 found {an old|a strange|a shining} $obj. {"I am magic," said a voice.|It was warm and began to glow.|When $he1 touched it, it spoke.} "{You have three wishes|I will give you three wishes}," {it said|said the $obj}.
{$N1 could hardly believe it.|$N1 thought for a long time.|$N1 was very excited.} First, $he1 wished for {a mountain of cake|a thousand [fruit]|a house full of toys}. {Puff! There it was.|At once, it appeared.} {But soon $he1 had a stomach ache.|But there was no room left to sit.|But after a day, it was boring.}
Then $he1 wished to be {as tall as a tree|able to fly|the strongest of all}. {It was fun at first.|For an hour, it was wonderful.} {But $his1 friends were afraid of $him1.|But it was lonely up there.|But nobody wanted to play with $him1 any more.}

{$N1 sat down and thought.|Now $he1 had only one wish left.} {$Intro2 came by. "Why do you look so sad?" asked $n2.|Then $intro2 spoke to $him1. "What is the matter?" asked $n2.} {"I have everything I wished for, but I am not happy," said $n1.|"My wishes were foolish," said $n1.}
{"I wish that everything were as it was before," said $n1.|"Then wish for something good for everyone," said $n2.} {The $obj shone one last time and became quiet.|There was a flash of light, and it was done.} {$N1 and $n2 went out to play, and that was better than any wish.|And $n1 was content at last.|$N1 learned that the best things do not need magic.}"""),
("a little robot", {}, """\
$N1 {found a broken robot behind the house|built a small robot from old cans|was given a little robot}. {It had two round eyes and one wheel.|It was made of tin and springs.|It beeped and blinked.} {"Hello," said the robot. "What can I do for you?"|"I am ready to help," said the robot.}
{"You can clean the kitchen," said $n1.|"Please water the plants," said $n1.|"Can you make breakfast?" asked $n1.} {But the robot did everything wrong.|The robot tried its best, but it made a mess.} {It put the shoes into the oven.|It watered the chairs.|It put salt into the tea.} 
{$N1 had to laugh.|At first, $n1 was angry.} {"I am sorry," said the robot. "I am still learning."|"I am a bad robot," said the robot and lowered its head.} {"Nobody is perfect," said $n1. "I will show you how."|"Do not worry," said $n1. "We can learn together."}

{Every day, the robot learned something new.|Day by day, it became better.} {First it learned to sweep the floor, then to set the table.|It learned to tell plates from hats.} {One day, $intro2 fell into the river.|One night, $intro2 was lost in the snow.} {The robot heard a cry for help.|Only the robot could hear the cries.} {It rolled out as fast as it could and saved $n2.|With its bright eyes, it found $n2 and brought $him2 home.}
{"You are a hero," said $n1.|Everyone cheered for the little robot.} {The robot blinked happily.|"I only did what a friend would do," said the robot.} {And it never put salt into the tea again.|From then on, it was part of the family.}"""),
("a mystery", {"food": ["cake", "pie", "cheese", "bread", "jam"]}, """\
{Every morning|For three days}, {something was missing from the kitchen|some of the $food was gone}. {"Who is eating my $food?" asked $n1.|"This is strange," said $n1. "Someone is taking my $food."} {$N1 wanted to find out.|$He1 decided to catch the thief.}
{First, $he1 put flour on the floor.|In the evening, $he1 hid behind the curtain.|$He1 asked $intro2 for help.} {Then $he1 waited.|The clock struck ten, then eleven.} {It was dark and quiet.|$N1 tried hard to stay awake.}
{At midnight, there was a noise.|Suddenly, the window opened.|Then the door creaked.} {Somebody came in on soft feet.|A shadow moved along the wall.} {$N1 lit the lamp. "Stop!" $he1 called.|"Now I have got you!" cried $n1.}

There stood {a tiny hedgehog|a thin little cat|a small mouse} with {crumbs on its nose|three hungry babies|big, frightened eyes}. "{Please do not be angry|I am sorry}," it said. "{We had nothing to eat|The winter is so long|I did not dare to ask}."
{$N1 was not angry any more.|$N1 felt sorry for it.} "{You only had to ask," said $n1.|Why did you not knock?" asked $n1.} {From then on, there was always a small plate by the door.|$He1 put a plate on the floor and filled it.} {And nothing was ever missing again.|So the thief became a guest, and the guest became a friend.}"""),
]

OPENINGS = """\
Once upon a time, there {was $intro1 who lived $home1|was $intro1|lived $intro1}.
Once upon a time, $intro1 lived $home1.
There once was $intro1{ who lived $home1|}.
Long ago, {when the world was young|in a land far away|in a quiet valley}, there lived $intro1.
One day, $intro1 {woke up early|looked out of the window|went for a walk|sat by the [place]}.
One [weather] [time], $intro1 {woke up early|went for a walk|was sitting by the [place]|looked up at the sky}.
In the morning, {the sun rose over the [place]|the birds were singing|everything was quiet|the air was cool and fresh}. {$Intro1 woke up and stretched|$Intro1 opened the window|$Intro1 came out into the sun}.
In a {small|quiet|faraway} {village|town|valley}, there lived $intro1.
Deep in the {forest|woods}, {there lived $intro1|$intro1 had a small house}.
{It was a [weather] [time] in [season]|It was a [weather] [season] [time]}. {$Intro1 was on the way to the [place]|$Intro1 was at home|$Intro1 sat in front of the house}.
$Intro1 lived $home1.
The $size1 $kind1 lived $home1.{ Everyone called $him1 $call1.|}
The $size1 $kind1 {woke up early|was very [nature]|looked out at the [place]|stretched and yawned}.
{Every evening|Every morning|Every day}, $intro1 {walked to the [place]|sat by the [place]|sang a little song|ate [food] and looked out of the window}.
Far away, {behind the hills|across the sea|beyond the mountains}, there was a {village|quiet valley|small town|deep forest|little island}. There lived $intro1.
Last [season], $intro1 moved to {a new town|a house by the [place]|a small village}.
My grandmother once told me about $intro1.
This is the story of $intro1{ who lived $home1|}.
Not far from here, $intro1 lived $home1.
When the [season] came, $intro1 {was [happy]|went out to see the world|left the house early}.""".split("\n")

TRAITS = """\
{$N1|$He1} was {very|always} [nature]{ and [good]|}.
$He1 liked {[food]|to walk in the [area]|to sing|to look at [sky]|to read books|to sit in the sun} {very much|more than anything|most of all}.
{$He1 had a soft [colour] coat|$He1 had bright eyes|$He1 had a big smile|$He1 always wore a [colour] hat}, and everyone {liked $him1|knew $him1}.
Every {morning|evening}, $he1 {went to the [place]|sang a song|ate [food]|said hello to the neighbours}.
$He1 lived {alone|with $his1 mother|with $his1 family|with two brothers} and was {never bored|often busy|mostly content}.""".split("\n")

# A day out: a goal and how it ends, and between them any of the EVENTS.
GOALS = [line.split(" => ") for line in """\
{$N1 wanted to see the sea, because $he1 had never been there|$N1 had heard so much about the sea that $he1 wanted to see it} => {At last, $n1 stood on the beach.|When $n1 came over the last hill, the sea lay before $him1.} {It was bigger than $he1 had ever imagined.|$He1 put $his1 feet into the cold water and laughed.|The waves whispered, and the air tasted of salt.}
{$N1 wanted to find a present for $his1 mother|$N1 was looking for a present, because it was $his1 mother's birthday} => {In the end, $n1 came home with [gift].|At last, $n1 found the right present. It was [gift].} {$His1 mother was so [happy] that she gave $him1 a big hug.|"That is just what I wanted," said $his1 mother.}
{$N1 wanted to visit $his1 friend on the other side of the hill|$N1 set off to visit an old friend} => {In the evening, $n1 reached the house of $his1 friend.|Before it got dark, $n1 arrived.} {They talked until late at night.|There was so much to tell that they forgot the time.|"I am so glad that you came," said $his1 friend.}
{$N1 was hungry and went out to look for something to eat|There was no food in the house, so $n1 went out to find some} => {In the end, $n1 had a basket full of [fruit].|When $he1 came home, $his1 basket was full.} {$He1 made soup and ate until $he1 was full.|It was enough for three days, and $he1 gave some to the neighbours.}
{$N1 had lost the way and wanted to go home|$N1 had walked too far and could not find the way back} => {At last, $n1 saw a light that $he1 knew.|Finally, $n1 came to a road that $he1 knew.} {Soon $he1 was at home, safe and warm.|"Home is the best place of all," $he1 said and closed the door.}
{$N1 was bored and wanted to have an adventure|"Today I will have an adventure," said $n1} => {That night, $n1 lay in bed and thought about everything.|When $n1 came home, everyone wanted to hear about it.} {"What a day!" $he1 said.|"Tomorrow I will stay at home," $he1 said, but $he1 did not mean it.|$He1 could hardly wait for the next adventure.}
{$N1 wanted to know where the river began|$N1 wondered where the river came from, so $he1 followed it} => {High up on the mountain, $n1 found a tiny spring.|At the end of the path, clear water came out of a rock.} {"So this is where it begins," $he1 said.|$He1 drank from it, and the water was cold and sweet.}
{$N1 wanted to climb the highest hill|From the window, $n1 could see a mountain, and one day $he1 wanted to climb it} => {At last, $n1 stood on the top.|The last part was steep, but then $n1 was there.} {$He1 could see the whole valley, and the houses looked like toys.|The wind was strong, and the world was wide.|"I did it!" $he1 shouted, and the mountains answered.}
{$N1 had to bring a letter to the [place]|$N1 had promised to carry a letter to the [place]} => {In the end, the letter arrived, although it was a little wet.|Late in the day, $n1 delivered the letter.} {"Thank you for coming such a long way," said the [job].|As a reward, $he1 got [gift].}
{$N1 wanted to collect wood for the fire|The winter was near, so $n1 went out to collect wood} => {When $n1 came home, $he1 had more wood than $he1 could carry.|In the evening, a bright fire was burning.} {$He1 sat in front of it and warmed $his1 hands.|The house was warm, and it smelled of [tree] wood.}
{$N1 wanted to paint a picture, but $he1 did not know what to paint|$N1 went out to find something beautiful to paint} => {In the evening, $n1 painted everything $he1 had seen.|At home, $n1 took a brush and began to paint.} {Everyone said that it was the best picture $he1 had ever made.|The picture still hangs above the door today.}
{$N1 wanted to hear the oldest story in the world|$N1 was looking for a story that nobody had ever heard} => {In the end, $n1 understood that $he1 had found a story after all.|When $n1 came home, $he1 wrote it all down.} {"The best stories happen on the way," $he1 said.|And that is the story you have just read.}""".split("\n")]

EVENTS = """\
{On the way|Near the [place]}, $he1 met a [animal] that was stuck in {the mud|a hole|a thorny bush}. "{Please help me|Please pull me out|I cannot get free}," it said. {$N1 pulled as hard as $he1 could|$N1 took a long stick and pulled}, and {at last it was free|soon it could walk again}.
{A [animal] was sitting by the road|By the road sat a [animal]}. "{Where are you going|What are you doing here}?" it asked. "{I am on my way|That is a long story}," said $n1. {The [size] animal|It} {nodded and wished $him1 good luck|showed $him1 a shorter way|walked with $him1 for a while}.
{Then|Suddenly} it began to rain, so $n1 {hid under a tree until it stopped|made a hat from a big leaf|ran to an empty barn and waited}. {Because the ground was wet, the path was slippery.|When the sun came back, everything smelled fresh.}
$He1 came to a {river|stream}, but there was no bridge. {A turtle carried $him1 across.|So $he1 jumped from stone to stone.|$He1 found a log and used it as a boat.} {On the other side, $he1 sat down to rest.|$His1 feet were wet, but $he1 did not mind.}
{In the middle of the [area]|Behind the [place]} {stood an old house|there was a small door in a tree}. {$N1 knocked, but nobody answered.|$N1 was curious and looked inside.} {There was only dust and a sleeping cat.|On the table was a plate of warm biscuits, but $he1 did not touch them.|A kind old woman gave $him1 a cup of tea.}
{A strong wind blew $his1 hat away|The wind took $his1 hat}, and $n1 ran after it. {It landed in a tree, but a [bird] brought it back.|It flew over the [place] and fell into the water.|In the end, it landed on the head of a [animal], and they both laughed.}
{At noon|When the sun was high}, $n1 was hungry. {$He1 sat down in the grass and ate [food].|$He1 found some [fruit] and ate them.|A [job] shared [food] with $him1.} {It tasted wonderful.|Afterwards, $he1 felt strong again.|The birds came to pick up the crumbs.}
{There $he1 met a [job].|Then a [job] came along.} "{Can you help me for a moment?" asked|I have too much to carry," said} the [job0]. {$N1 was glad to help.|Although $he1 was in a hurry, $n1 helped.} {As a thank you, $he1 got some [fruit].|They finished the work before long.}
{Two [animals] were fighting over an apple|Two [animals] were shouting at each other because of an apple}. "{It is mine|I saw it first}!" {cried|said} one of them. "No, it is mine!" {cried|said} the other. {"Why do you not share it?" asked $n1, and they had to admit that $he1 was right.|$N1 cut the apple in two, and there was peace.}
{$N1 heard a strange sound.|There was a strange noise in the bushes.} {At first, $he1 was afraid, but it was only a [animal].|$He1 stood still and listened. It was only the wind.|It came from a hollow tree, where a [animal] was snoring.}
{Because $he1 was tired, $n1 lay down under a [tree] tree.|After a while, $n1 had to rest.} {$He1 fell asleep and dreamed of [sky0].|When $he1 woke up, a [animal] was looking at $him1.|A butterfly sat down on $his1 nose.}
{On the ground, $he1 found [gift].|Something was lying on the path. It was [gift].} {$He1 looked around, but there was nobody to be seen.|"Someone must have lost it," $he1 thought.} {So $he1 put it on a big stone where the owner could find it.|A moment later, a [job] came and thanked $him1 for finding it.}
A [bird] flew down from a tree. "{Be careful|Watch out}," it said. "{There is a wolf in the woods|The bridge is broken|A storm is coming}." {$N1 thanked the bird and took another way.|"Thank you for telling me," said $n1, and $he1 walked a little faster.}
{$N1 asked a [job] for the way.|At the crossroads, $n1 did not know which way to go.} {"Go left at the [place], and then straight on," said an old man.|A sign said "left", but the arrow pointed to the right.|"Follow your nose," said a [animal] and laughed.}
{The path went through a dark [dark].|Then it grew dark and cold.} {$N1 sang a song, so that $he1 would not be afraid.|$He1 could hear drops of water and $his1 own steps.} {Soon $he1 saw the light again.|It was shorter than $he1 had feared.}
{In the [area], people were dancing, because it was a holiday.|There was a party in the village.} {$N1 danced with them for a while.|Somebody gave $him1 a piece of cake.|$N1 clapped along with the music.} {But $he1 did not want to be late, so $he1 went on.|When the music stopped, $he1 waved and went on.}
{A young [animal] wanted to come along|A [animal] had no one to talk to}, so they walked together. {It knew many songs, and the time passed quickly.|They told each other jokes until they could not stop laughing.} {At the [place], they said goodbye.|When they parted, they promised to meet again.}
{$N1 wanted to take a shortcut, but $he1 got lost.|The shortcut was not short at all.} {$He1 climbed a tree to look around.|$He1 followed the sound of the bells.|$He1 remembered that the moss grows on the north side of the trees.} {Soon $he1 was back on the road.|From up there, $he1 could see the [place].}
{A big dog barked at $him1|A goat stood in the middle of the bridge}, and $n1 did not dare to go on. {But when $he1 gave it some bread, it let $him1 pass.|"Good morning," $he1 said politely, and to $his1 surprise, it moved aside.}
{$His1 shoe had a hole|$His1 bag was torn}, and {$he1 lost two apples|everything fell out}. {A [animal] picked it all up and brought it to $him1.|A tailor sewed it up and did not want any money.|So $he1 tied it up with a piece of string.}
{Far away, bells were ringing.|The clouds looked like ships.|The air smelled of [flower].} {$N1 stopped and breathed in deeply.|$N1 thought of home.|"How beautiful the world is," $he1 thought.}
{$He1 met a [animal] who could not sleep, because the moon was too bright.|A [animal] told $him1 that it had not slept for three days.} {$N1 sang it a lullaby, and soon it was snoring.|"Try to close your eyes and count to a hundred," said $n1.}
{A [job] was looking for a lost [animal].|Somewhere a lost [animal] was crying.} {$N1 had seen its tracks in the mud and could help.|Together they found it [hidden].} {"How lucky that I met you," said the [job0].|Everybody was relieved.}""".split("\n")

MORALS = """\
And they all lived happily ever after.
And if you ever go there, you may still meet them.
That is the end of the story.
And $n1 never forgot that day.
And that is how it was.
The end.""".split("\n")


def day_out(rng):
    """A plot made of a goal, two to four events and the end of the goal."""
    goal, end = rng.choice(GOALS)
    steps = [rng.choice(["So $he1 set off early.", "$He1 took a small bag and left the house.",
                         "So $he1 put on $his1 shoes and went out.", ""])]
    for event in rng.sample(EVENTS, rng.randint(2, 4)):
        # [job0] and friends: the same word again
        for name in re.findall(r"\[(\w+)0\]", event):
            event = re.sub(r"\[%s0?\]" % name, rng.choice(LISTS[name]), event)
        steps += [event] + ([""] if rng.random() < 0.3 else [])
    return "a journey", {}, "\n".join([goal + "."] + steps + [end])


def story(rng, kind=None, other=None, single=False):
    """A story of one to three paragraphs; returns its text, main character and topic.
    `single`: each character is spoken of in one way only, so that the story can be cut anywhere."""
    one = character(1, rng, kind)
    two = character(2, rng, other, avoid=one)
    topic, words, steps = day_out(rng) if other is None and rng.random() < 0.3 else rng.choice(PLOTS)
    slots = dict(one["slots"], **two["slots"])
    if single:
        slots["n1"], slots["n2"] = slots["name1"], slots["name2"]
    for key, choices in words.items():
        slots[key] = resolve(rng.choice(choices), slots, rng)
    slots["home1"] = resolve(slots["home1"], slots, rng)
    parts = [resolve(rng.choice(OPENINGS), slots, rng)]
    if one["name"] and one["name"] not in parts[0]:  # never introduced by name
        slots["n1"] = slots["the1"]
    if rng.random() < 0.45:
        parts.append(rng.choice(TRAITS))
    for line in steps.split("\n"):
        if not line:
            parts.append("\n\n")
        elif not line.startswith("?") or rng.random() < 0.55:
            parts.append(line.lstrip("?"))
    if rng.random() < 0.2:
        parts.append(rng.choice(MORALS))
    text = " ".join(expand(p, slots, rng).strip(" ") for p in parts)
    return re.sub(r" *\n\n *", rng.choice(["\n\n", "\n\n", " "]), text).strip(), one, expand(topic, slots, rng).lower()


# ----------------------------------------------------------------------------------------------------------------------
# Other prose: facts, dialogues, letters, instructions
# ----------------------------------------------------------------------------------------------------------------------


FACTS = """\
$Thing is {$colour|usually $colour}.
The colour of $thing is $colour.
The opposite of $low is $high.
The capital of $land is $city.
$city is the capital of $land{, and many people live there|}.
{You|We|People} {use|need} $tool to $use.
$What is $is.
A $job is a person who $does.
A $job $does and often needs $with.
After $day1 comes $day2.
The $k lives $home and eats $food.
The $k $sound, and its baby is called a $baby.
$Ks can $cans.
{A week has seven days|A year has twelve months|A day has twenty-four hours|An hour has sixty minutes|A spider has eight legs|A hand has five fingers}.
{In spring, the flowers bloom|In summer, the days are long|In autumn, the leaves fall from the trees|In winter, it is cold and sometimes it snows}.
{The sun rises in the east|The sun sets in the west|The moon shines at night|Fish live in water|Birds build nests in spring|Plants need water and light|Rain falls from the clouds}.""".split("\n")


def facts(rng):
    """A paragraph of four to eight plain facts."""
    lines = []
    for line in rng.sample(FACTS, rng.randint(4, 8)):
        thing, colour = rng.choice(list(COLOURS.items()))
        low, high = rng.choice(list(OPPOSITES.items()))
        land, city = rng.choice(list(CAPITALS.items()))
        tool, use = rng.choice(USES)
        what, is_what = rng.choice(THINGS)
        job, does, tool2 = rng.choice(JOBS)
        day = rng.randrange(7)
        slots = dict(animal_slots(rng.choice(ANIMALS)[0]), thing=thing, colour=colour, low=low, high=high, land=land,
                     city=city, tool=tool, use=use, what=what, job=job, does=does, day1=DAYS[day],
                     day2=DAYS[(day + 1) % 7])
        slots["is"], slots["with"] = is_what, tool2
        lines.append(expand(line, slots, rng))
    return " ".join(lines)


def plural(kind):
    return PLURALS.get(kind, kind + "s")


def animal_slots(kind):
    a = ANIMAL[kind]
    legs = {"0": "no legs", "2": "two legs", "4": "four legs", "6": "six legs", "8": "eight legs"}[a[7]]
    return {"k": kind, "ks": plural(kind), "home": a[1], "food": a[2], "col": a[3], "sound": a[4], "baby": a[5],
            "can": a[6], "cans": a[6].replace("its", "their"), "legs": legs, "size": a[8]}


FACT_SENTENCES = """\
It lives $home.
It eats $food.
{Most $ks are $col|Its colour is often $col}.
It has $legs.
A $k can $can.
A baby $k is called a $baby.
{When it is happy, it $sound|When you hear it, it $sound}.
{Children like $ks very much|Many stories tell of $ks|You can read about $ks in many books}.""".split("\n")


def animal_facts(rng, kind, count=None):
    slots = animal_slots(kind)
    lines = rng.sample(FACT_SENTENCES[:6], count or rng.randint(3, 5))
    first = rng.choice(["The $k is a $size animal.", "$Ks are $size animals.", "A $k is a $size animal."])
    if first[0:2] == "$K":
        for one, many in (("It lives", "They live"), ("It eats", "They eat"), ("It has", "They have"),
                          ("Its col", "Their col")):
            lines = [x.replace(one, many) for x in lines]
    return " ".join(expand(x, slots, rng) for x in [first] + lines)


DIALOGUES = """\
"{Are you hungry|Would you like something to eat}?" asked $n1. "{Yes, very|A little}," said $n2. "{What do you have|Is there any bread left}?" "{There is [food] on the table|I have [food] and [fruit]}," said $n1. "{That sounds good|Wonderful}," said $n2, and they sat down {to eat|at the table}.
"{Where are you going|Where have you been}?" asked $n1. "To the [place]," said $n2. "{It is a long way|It was a long walk}," said $n1. "{I like to walk|I do not mind}," said $n2. "{The sun is shining and I am not in a hurry|It is such a [weather] day}."
"{Look at the sky|Do you see the clouds}," said $n1. "{I think it will rain|It looks like rain}." "{Then we should go home|We have no umbrella}," said $n2. {They hurried home, and they were just in time.|They ran as fast as they could, but they got wet all the same. Then they laughed about it.}
"{What are you reading|What is that book about}?" asked $n1. "It is a story about [topicthing]," said $n2. "{Is it good|Do you like it}?" asked $n1. "{It is wonderful|Yes, I cannot stop reading}," said $n2. "{You can have it when I have finished|Sit down, and I will read it to you}."
"{What do you want to be when you grow up|What would you like to be}?" asked $n1. "I want to be a [job]," said $n2. "{Why|Why is that}?" asked $n1. "{Because I like to help people|Because it is good work|Because my father was one}," said $n2. "{And you|What about you}?" "{I do not know yet|I want to see the whole world}," said $n1.
"{Did you sleep well|Good morning! Did you sleep well}?" asked $n1. "{No, I had a strange dream|I had a wonderful dream}," said $n2. "{What was it about?" asked $n1.|Tell me about it," said $n1.} "I dreamed that I {could fly over the [place]|lived in a castle|was as small as a mouse|talked to a [animal]}," said $n2. "{That is a nice dream|How strange}," said $n1.
"{I am bored," said $n1.|What shall we do today?" asked $n1.} "{We could go to the [place]|Let us bake a cake|We could fly a kite}," said $n2. "{That is a good idea|Yes, let us do that}," said $n1. So they {put on their shoes|took their coats} and went out. {It was a lovely day.|They came home late, tired and [happy].}
"{Can you keep a secret|I have a secret}," said $n1. "{Of course|You can tell me}," said $n2. $N1 {looked around|came closer} and whispered, "I have found [gift] in the [area]." "{Whose is it|Does anyone know about it}?" asked $n2. "{I do not think so|Nobody knows}," said $n1. "{Let us find out whose it is|We should give it back}," said $n2.""".split("\n")
DIALOGUES += """\
"{Who is there|Who is knocking}?" asked $n1. "It is me, $n2," said a voice behind the door. "{I have brought you something|I was in the area and wanted to see you}." "{Come in|What a surprise|How nice of you}," said $n1. "{Sit down by the fire, it is cold outside|I have just made tea}." {They talked until late in the evening.|It was good to have a visitor.}
"{Have you seen my [lost]|Where is my [lost]}?" asked $n1. "{It was on the table this morning|I think it is in the kitchen}," said $n2. "{It is not there any more|I have already looked there}," said $n1. "{Then look [hidden]|Perhaps you left it at the [place]}," said $n2. {And there it was.|$N1 went to look, and soon $he1 came back with a smile.}
"{Why is the sky blue|Why do the leaves fall|Why do birds sing|Why is the sea salty}?" asked $n1. "{That is a good question|I have often asked myself that}," said $n2. "{Nobody told me|I read about it once, but I have forgotten it|My grandfather would know}." "{Then let us find out|We could look it up in a book}," said $n1.
"{I cannot do this|This is too difficult}," said $n1. "{You have not even tried|Let me see|Show me}," said $n2. "{Start with the easy part|If you do it step by step, it is not so hard|I will do the first one, and you do the next}." {After a while, $n1 smiled. "You were right," $he1 said.|Before long, it was done. "That was not so bad," said $n1.}
"{It is getting late|The sun has set}," said $n1. "{Just five more minutes, please," said $n2.|Can we stay a little longer?" asked $n2.} "{We must be home before dark|Your mother is waiting}," said $n1. "{Tomorrow is another day|We can come back tomorrow}." {$N2 sighed, but $he2 knew that it was true.|So they packed their things and walked home under the first stars.}
"How much is this {hat|lamp|basket|scarf|book}?" asked $n1. "{Three|Five|Ten} coins," said $n2. "{That is too much for me|I only have two}," said $n1. "{For you, I will make it cheaper|Then give me what you have}," said $n2. "{Thank you, that is very kind|You are very kind}," said $n1 and {paid|went away [happy]}.
"{I am sorry that I was late|I am sorry that I shouted at you}," said $n1. "{I was angry, but now it is all right|It does not matter|I had already forgotten it}," said $n2. "{Are we still friends|Do you forgive me}?" asked $n1. "{Of course|Always}," said $n2, and {they shook hands|they both felt better}.""".split("\n")
LISTS["topicthing"] = "a brave [animal], a lost [lost], a ship in a storm, a [size] [animal] and a [animal], a magic ring".split(", ")
LISTS["animal"] = STORY_ANIMALS
LISTS["animals"] = [PLURALS.get(a, a + "s") for a in STORY_ANIMALS]
LISTS["bird"] = "blackbird, crow, robin, swallow, stork, pigeon, goose".split(", ")
LISTS["dark"] = "tunnel, cave, forest, valley".split(", ")
LISTS["job"] = [j[0] for j in JOBS]

LETTERS = r"""Dear $name2,\n\n{How are you?|Thank you for your letter.|I hope you are well.} I am {fine|very well}. {The weather here is [weather]|It has been a [weather] week|[season] has come at last}. {Yesterday|Last week|On Sunday}, {I went to the [place]|we had a picnic by the [place]|I saw a [animal] near the [place]} and {ate [food]|picked [fruit]|found a [lost]}. {I wish you had been there|You would have liked it}. {Please write soon|Come and visit us soon}.\n\n{Your friend|With love|Yours},\n$name1
Dear diary,\n\nToday was a [weather] day. {In the morning, I had [food] for breakfast|I got up early and looked out of the window}. Then I {went to the [place] with my friend $name2|helped my grandmother in the garden|learned a new song at school}. {We saw a [animal], and it was not afraid of us|It was more fun than I had expected|We laughed a lot}. In the evening, I was {tired but [happy]|very tired}. {Tomorrow I want to go to the [place]|I hope that tomorrow will be as nice as today}. Good night.
My name is $name1, and I {live in [home]|come from a small village|am nine years old}. I have {a brother and a sister|a little brother|two sisters} and {a dog|a cat|a rabbit}{ called $name2|}. {My favourite food is [food]|My favourite colour is [colour]|I like to play in the [area]}. {When I grow up, I want to be a [job]|In my free time, I like to read|Every [season], we go to the sea}. {I am happy here|That is all about me}.
{Hello|Hi}, my name is $name1. I am {seven|eight|ten|twelve} years old and I {like|love} {[food]|to read books|to draw|to swim|animals|music}. {Today I want to tell you about my friend $name2|My best friend is called $name2}. We {met by the [place]|have known each other for three years|live in the same street}. {When it rains, we play inside|After school, we often go to the [place]|We never get bored when we are together}. {Once, we found [gift] [hidden]|Once, we saw a [animal] near the [place]|Last [season], we built a small house in a tree}, and {we still laugh about it|I will never forget it}.
Dear $name2,\n\n{I am writing to invite you to my party|Next Sunday is my birthday|We are having a little party}. {It starts at three o'clock|Please come at four o'clock}. {There will be [food] and music|We will eat [food] and play games in the garden}. {Please bring a warm coat, because we will be outside|You do not have to bring anything}. {I hope that you can come|I am looking forward to seeing you}.\n\n{Yours|With love|Your friend},\n$name1
My grandfather {was a [job]|lived in [home]}. {When I was small, he told me stories about the [place]|Every Sunday, we went to the [place] together}. {He knew the name of every tree and every bird|He could make anything from wood|He always had [food] for me}. "{Take your time|Be kind, and the rest will follow|Listen first, and then speak}," he used to say. {I often think of him when I see [sky]|Today I have his [lost], and it is my greatest treasure}.
My favourite season is {spring, because the first flowers come out|spring, because everything smells of flowers|summer, because the days are long|summer, because we can swim in the lake|autumn, because the leaves are so colourful|autumn, because the apples are ripe|winter, because I love the snow|winter, because we sit by the fire}. {In the morning, I go to the [place]|After school, I meet my friends by the [place]}. {We eat [fruit] and tell stories|We play until the sun goes down}. {I wish it could last forever|I look forward to it all year}.""".split("\n")

HOWTO = [line.split("|", 1) for line in """\
make a sandwich|First, take two slices of bread. Put some butter on them. Then add cheese, ham or tomatoes. Put the second slice on top. Now your sandwich is ready. Enjoy your meal!
make tea|First, boil some water. Put the tea into a cup. Pour the hot water over it and wait for a few minutes. Then add some milk or honey if you like. Be careful, because it is hot.
plant a seed|First, fill a pot with earth. Make a small hole with your finger and put the seed into it. Cover it with earth. Give it some water every day and put the pot in the sun. After a week or two, you will see a small green leaf.
build a snowman|First, roll a big ball of snow. Then roll a second ball and a small one. Put them on top of each other. Use a carrot for the nose and stones for the eyes. At last, put a hat on its head.
bake a cake|First, mix butter and sugar. Then add eggs, flour and milk. Put everything into a form and bake it in the oven for an hour. Let it cool down before you eat it. Then share it with your friends.
make soup|First, wash and cut the vegetables. Put them into a pot with water and some salt. Let the soup cook for half an hour. Taste it before you serve it. It is best with a slice of bread.
brush your teeth|First, put some toothpaste on your brush. Brush your teeth for three minutes, in front and behind. Then rinse your mouth with water. Do it every morning and every evening.
fly a kite|First, wait for a windy day. Go to an open field, far from trees. Hold the kite up and let a friend take the line. Run against the wind and let the kite go. Then give it more and more line.
make friends|First, smile and say hello. Ask the other person a question and listen to the answer. Share something or play a game together. Be kind and honest. Good friends need time, so be patient.
fall asleep|First, turn off the lights and close your eyes. Think of something nice, such as the sea or a quiet forest. Breathe slowly and deeply. Count sheep if you like. Soon you will fall asleep.
draw a cat|First, draw a big circle for the body and a small one for the head. Add two triangles for the ears. Draw a long tail and four legs. Then add the eyes, the nose and the whiskers. Now give your cat a name.""".splitlines()]

# ----------------------------------------------------------------------------------------------------------------------
# Chat: questions (templates, first line of each block) and answers
# ----------------------------------------------------------------------------------------------------------------------

COLOURS = {"the sky": "blue", "grass": "green", "snow": "white", "the sun": "yellow", "blood": "red", "a tomato": "red",
           "a lemon": "yellow", "a carrot": "orange", "the sea": "blue", "milk": "white", "coal": "black",
           "chocolate": "brown",
           "a banana": "yellow", "an orange": "orange", "a strawberry": "red", "a leaf": "green", "the night": "black",
           "a cloud": "white", "a rose": "red", "gold": "yellow", "a cherry": "red", "an elephant": "grey",
           "a frog": "green",
           "a pig": "pink", "the moon": "white", "butter": "yellow", "salt": "white", "an apple": "red or green"}
OPPOSITES = dict(pair.split(":") for pair in """hot:cold big:small tall:short fast:slow old:young good:bad happy:sad light:dark
wet:dry hard:soft loud:quiet full:empty early:late open:closed clean:dirty strong:weak rich:poor up:down left:right day:night
near:far long:short thick:thin heavy:light high:low right:wrong easy:difficult black:white inside:outside brave:afraid""".split())
CAPITALS = dict(pair.split(":") for pair in """France:Paris Germany:Berlin Italy:Rome Spain:Madrid England:London Japan:Tokyo
China:Beijing Russia:Moscow Egypt:Cairo Greece:Athens Portugal:Lisbon Austria:Vienna Poland:Warsaw Norway:Oslo Sweden:Stockholm
Finland:Helsinki Denmark:Copenhagen Ireland:Dublin Canada:Ottawa India:Delhi Turkey:Ankara Hungary:Budapest Belgium:Brussels
Kenya:Nairobi Peru:Lima Cuba:Havana""".split())
USES = [line.split("|") for line in """\
a spoon|eat soup
a knife|cut bread
a hammer|hit nails
a broom|sweep the floor
a pencil|write and draw
an umbrella|stay dry in the rain
a key|open a door
a lamp|light a room
a clock|tell the time
scissors|cut paper
a needle|sew clothes
a bed|sleep
a map|find the way
a boat|cross the water
a ladder|climb up high
an oven|bake bread
a cup|drink tea
a towel|dry your hands
a telescope|look at the stars
a bridge|cross a river
a spade|dig holes
a net|catch fish""".splitlines()]
THINGS = [line.split("|") for line in """\
a lighthouse|a tall tower by the sea. Its light shows the ships the way
a forest|a large place with many trees. Foxes, deer and owls live there
a river|a long stream of water that flows to the sea
an island|a piece of land with water all around it
a mountain|a very high hill. Its top is often covered with snow
a school|a place where children learn to read, write and count
a library|a place where you can read and borrow books
a market|a place where people buy and sell food and other things
a bakery|a shop where you can buy bread and cakes
a farm|a place where people grow food and keep animals
a village|a small place where people live. It is smaller than a town
a castle|a big, strong house with walls and towers. Kings and queens lived there
a desert|a very dry place with a lot of sand and almost no rain
a garden|a place where flowers, fruit and vegetables grow
a rainbow|a bow of many colours in the sky. You can see it when the sun shines through the rain
snow|frozen water that falls from the clouds in winter
rain|water that falls from the clouds
the sun|a star. It gives us light and warmth
the moon|a ball of rock that goes around the earth. You can see it at night
a star|a far away sun. You can see many of them at night
a cloud|made of many tiny drops of water
wind|moving air. It can be soft or very strong
fire|hot and bright. It can keep you warm, but it can also burn you
ice|frozen water. It is cold, hard and slippery
honey|sweet and golden. Bees make it from the nectar of flowers
bread|made from flour, water and salt. People bake it in an oven
milk|a white drink. It comes from cows, goats and sheep
a friend|someone who likes you and helps you
a story|a tale about things that happened or could happen
a robot|a machine that can move and do work
a computer|a machine that can count, store and show things
a language model|a program that learned from text and can write new sentences. I am one of them
a token|a small piece of text. A language model reads and writes one token after another
a tree|a tall plant with a trunk, branches and leaves
a flower|the colourful part of a plant. Bees love it
a kite|a toy that flies in the wind on a long line
a dream|a story that you see while you sleep
winter|the coldest season. The days are short, and sometimes it snows
summer|the warmest season. The days are long and sunny
spring|the season when flowers begin to bloom
autumn|the season when the leaves turn red and yellow and fall from the trees""".splitlines()]
NUMBERS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
           "eighteen nineteen twenty").split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()

TALK = [tuple(part.strip() for part in block.split("=>")) for block in """\
{Hello|Hi|Hey|Hello there|Hi there|Hello!|Hi!|Hello, how are you?|Hi, how are you?|Hey you} => {Hello|Hi}{!| there!} {How can I help you|What can I do for you|It is nice to meet you. What would you like to talk about|Would you like to hear a story}?
{Good morning|Good afternoon|Good evening}{|!|.} => {Hello!|Good day to you!|Hello and welcome!} {How can I help you today?|Would you like to hear a story?|What would you like to know?}
{How are you|How are you today|How do you do|How is it going}? => {I am fine, thank you|I am very well, thank you|Thank you, I am well}. {How can I help you?|And how are you?|It is a good day for a story.}
{What is your name|Who are you|What are you called|Tell me your name|May I know your name|What's your name}? => {My name is Fastgen Demo|I am the fastgen demo|You can call me Fastgen Demo}. I am a {very small|tiny|small} language model{, and I like to tell stories|. I can tell stories and answer simple questions|}.
{What are you|Are you a robot|Are you a human|Are you a person|Are you an AI|Are you real}? => I am {not a person. I am |}a {very small|tiny} language model. {I learned to write from little stories.|I live in a file of less than three megabytes.|I have read many little stories, and I can write new ones.}
{What can you do|How can you help me|What do you know|What can I ask you|What are you good at|Can you help me|Help|I need help}? => I can tell {you |}little stories, {talk about animals|answer simple questions about animals} and {chat with you|tell you about colours, days and numbers}. {Just ask me!|Try to ask me for a story about a fox.|Ask me where the bear lives, for example.}
{Who made you|Who built you|Where do you come from|How were you made|How did you learn to write}? => I {was made by|come from} a {short|small} {training script|program}. {It wrote many little stories, and I learned from them.|It taught me to write with little stories.}
{How old are you|When were you born|When is your birthday}? => I {do not have an age|am not sure how old I am}, because I am a {program|language model}. {But I feel quite young.|Every time you start me, I feel brand new.}
{How big are you|How large are you|How many parameters do you have}? => I am {very small|tiny}. I have nearly two million parameters{, and my file is smaller than three megabytes|}. {Other models are a thousand times bigger.|But small things can be nice, too.|}
{Where do you live|Where are you|Where is your home}? => I live {inside your computer|in your computer, in a small file|in a small file on your computer}. {It is quite cosy.|It is warm in here when you ask many questions.|}
{Do you like stories|Do you like animals|Do you like music|Do you like books}? => {Yes, very much!|Yes, I do!|Of course I do!} {Stories are the thing I know best|I learned everything I know from stories}. {Shall I tell you one?|Would you like to hear one?}
{Do you have a family|Do you have friends|Are you lonely|Do you have a mother|Do you sleep|Do you eat|Are you hungry}? => {No, I am just a program|No, because I am a language model|I am only a small program}, {but I like to talk with you|but thank you for asking|so I do not need that}.
{Are you happy|Are you sad|Do you have feelings|Can you feel|Do you dream}? => I am {a program|a language model}, so I do not {feel|have feelings} {as you do|like a person}. {But I enjoy a good story.|But it is kind of you to ask.}
{What is your favourite colour|What is your favorite color|Which colour do you like best}? => I {like|think I like} [colour] {best|most of all}. {It reminds me of the [place].|What is your favourite colour?|}
{What is your favourite animal|What is your favorite animal|Which animal do you like best}? => I like the [animal] {best|most of all}. {Shall I tell you a story about one?|I know many stories about animals.|}
{What is your favourite food|What is your favorite food|What do you like to eat}? => I {cannot eat|do not eat}, because I am a program. But in my stories, everyone loves [food].
{Thank you|Thanks|Thank you very much|Thanks a lot|That was nice|Thank you for the story}{|!|.} => {You are welcome!|You are very welcome!|It was a pleasure.|I am glad that you liked it.} {Is there anything else I can do for you?|Come back whenever you like.|Would you like to hear more?|}
{Goodbye|Bye|Bye bye|See you later|See you tomorrow|I have to go now}{|!|.} => {Goodbye!|Goodbye, and take care!|See you soon!} {It was nice to talk to you.|Come back soon.|Have a nice day!}
{Good night|Sleep well|I am going to bed|I am tired}{|!|.} => {Good night|Sleep well}{!| and sweet dreams!} {May you dream of something nice.|See you tomorrow.|The stars will watch over you.}
{I am sad|I feel sad|I am unhappy|I feel lonely|I am having a bad day|I am not happy}{|.} => {I am sorry to hear that|Oh, I am sorry}. {Sometimes it helps to talk to a friend|A little walk in the sun may help|After the rain, the sun always comes back}. {Shall I tell you a story?|Would you like to hear a story to cheer you up?}
{I am happy|I feel great|I am having a good day|I feel good today}{|!|.} => {That is wonderful|I am glad to hear that|How nice}! {What made you so happy?|I hope the rest of your day is just as good.|Share your smile with someone.}
{I am bored|I have nothing to do|What should I do today}{|.} => {You could read a book or go for a walk|You could draw a picture, bake a cake or call a friend|How about a walk to the [place]}. {Or I can tell you a story.|Shall I tell you a story?}
{I am hungry|What should I eat|What should I cook}{|.|?} => {How about [food]|You could make [food]|I would try [food]}? {It is easy to make and tastes good.|With a cup of tea, it is even better.|In my stories, everyone likes it.}
{Yes|Yes, please|Okay|OK|Sure}{|.|!} => {Good!|Very good!|Wonderful!} {What would you like to hear about?|Just tell me what you want to know.|Ask me for a story about an animal, for example.}
{No|No, thank you|Not now|Stop}{|.} => {All right|That is fine|As you like}. {I will be here if you need me.|Just tell me when you want to talk.}
{You are funny|You are nice|You are clever|You are great|I like you|I love you|Good job|Well done|Great}{|!|.} => {Thank you|Thank you very much|That is very kind of you}! {I do my best.|You are nice, too.|I like to talk to you, too.}
{You are stupid|You are wrong|That is wrong|I do not like you|That is not true|You are bad}{|!|.} => I am sorry{ about that|}. I am a very small model, and {I make many mistakes|I do not know much}. {Please try another question.|Shall I tell you a story instead?}
{Tell me a joke|Do you know a joke|Make me laugh|Say something funny|Another joke, please}{|.|!|?} => {Why did the [animal] cross the road? To get to the other side!|What did the sea say to the beach? Nothing, it just waved.|What has four legs but cannot walk? A table!|Why do bees hum? Because they have forgotten the words!|What is black and white and read all over? A newspaper!|What gets wetter the more it dries? A towel!|Why did the baker work so hard? He needed the dough!|Which side of a duck has the most feathers? The outside!}
{Tell me a riddle|Do you know a riddle|Ask me a riddle}{|.|?} => {What has hands but cannot clap? A clock.|What has keys but cannot open a door? A piano.|What has teeth but cannot bite? A comb.|What falls but never gets hurt? The rain.|What goes up but never comes down? Your age.|I am white in winter and gone in spring. What am I? Snow.}
{What time is it|What day is it today|What is the date|What is the time}? => I am sorry, I {do not have a clock|cannot see a clock}. {Perhaps there is one on your wall.|But it is always a good time for a story.}
{What is the weather like|How is the weather|Is it raining|Will it rain tomorrow|Is it cold outside}? => I {cannot look outside|do not have a window}, {so I do not know|so you must look out of the window yourself}. {But I hope the sun is shining where you are.|I hope it is a nice day.}
{What is the meaning of life|Why are we here|What is love|What is happiness}? => {That is a big question for a small model|I am too small to know that}. {In my stories, it is to be kind and to help each other.|But I think that friends have a lot to do with it.}
{Can you speak German|Do you speak French|Do you speak Spanish|Which languages do you speak|Can you speak English}? => I {only speak|can only speak} English{. It is the language of all my stories|, and only simple English|}.
{Write a poem|Can you write a poem|Tell me a poem|Write a short poem about the moon|Do you know a poem}{|.|?} => {The moon is round, the night is deep,\\nthe little birds are fast asleep.\\nThe stars are shining, cold and clear,\\nand morning will again be here.|The rain falls softly on the tree,\\nthe river runs down to the sea.\\nThe wind goes singing through the land,\\nand I walk with you, hand in hand.|The snow is white, the sky is grey,\\nthe birds have flown so far away.\\nBut spring will come and bring the sun,\\nand winter days will soon be done.|A little mouse, a piece of cheese,\\na quiet house, a gentle breeze.\\nThe cat is sleeping by the door,\\nand nobody could ask for more.}
{Sing a song|Can you sing|Sing me a song}{|.|?} => I {cannot sing|have no voice}, but here is a little song: {The sun goes up, the sun goes down,\\nthe light shines over field and town.|Row the boat and row it slow,\\ndown the river we will go.|Sleep, my little one, sleep tight,\\nstars are shining all the night.}
{How many days are there in a week|How many days does a week have}? => {There are seven days in a week|A week has seven days}.
{How many months are there in a year|How many months does a year have}? => {There are twelve months in a year|A year has twelve months}.
{How many seasons are there|What are the seasons|Name the four seasons|What are the four seasons}? => There are four seasons: spring, summer, autumn and winter.
{What are the days of the week|Name the days of the week|Tell me the days of the week}? => The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.
{What are the months of the year|Name the months|Tell me the months of the year}? => The months are January, February, March, April, May, June, July, August, September, October, November and December.
{Count to five|Can you count to five}{|.} => One, two, three, four, five.
{Count to ten|Can you count|Can you count to ten|Count from one to ten}{|.} => One, two, three, four, five, six, seven, eight, nine, ten.
{How many fingers do you have|How many fingers does a person have|How many fingers does a hand have}? => A hand has five fingers, and two hands have ten. {I have none, because I am a program.|}
{How many eyes does a person have|How many ears does a person have|How many legs does a person have|How many hands does a person have}? => A person has two of them.
{What do bees make|Who makes honey|Where does honey come from}? => {Bees make honey|Honey comes from bees}. They {make it|collect nectar and make it} from flowers.
{Where does milk come from|Who gives milk}? => Milk comes from cows. {Goats and sheep give milk, too.|}
{Where does the rain come from|Why does it rain|How does rain work}? => {Rain comes from the clouds|The clouds are full of tiny drops of water}. When the drops become too heavy, they fall down as rain.
{Why is the sky blue|Why does the sky look blue}? => The light of the sun has many colours. The air spreads the blue light most, so the sky looks blue.
{Why do birds fly south|Where do birds go in winter|Why do birds sing}? => {In winter, many birds fly to warm countries, because there is more food|Birds sing to talk to each other}. {In spring, they come back.|You can hear them best in the morning.}
{Why do leaves fall|Why do leaves turn red}? => In autumn, the trees get ready for the winter. The leaves turn red and yellow, and then they fall down.
{What do plants need|What does a seed need to grow|How do plants grow}? => Plants need water, light, air and good earth. {With enough time, a small seed can become a big tree.|}
{Why do we sleep|Why do people sleep}? => {We sleep because our body needs rest|Sleep gives us new strength}. {While we sleep, we dream.|After a good night, we feel fresh.}
{Is the earth round|What shape is the earth|Is the earth flat}? => The earth is round, like a ball. It goes around the sun once a year.
{How long is a year|How many days are there in a year}? => A year has three hundred and sixty-five days.
{How many hours are in a day|How long is a day}? => A day has twenty-four hours.
{How many minutes are in an hour|How long is an hour}? => An hour has sixty minutes.
{What is the biggest animal|What is the largest animal in the world}? => The blue whale is the biggest animal of all. It lives in the ocean.
{What is the fastest animal|Which animal is the fastest}? => The fastest animal on land is the cheetah.
{What is the tallest animal|Which animal has a long neck}? => The giraffe is the tallest animal. It has a very long neck.
{What is the biggest planet|Which planet is the largest}? => The biggest planet is Jupiter.
{What do we drink when we are thirsty|What should I drink}? => Water is the best drink when you are thirsty.
{Tell me about yourself|Introduce yourself|Describe yourself}{|.} => My name is Fastgen Demo. I am a tiny language model, and I learned to write from little stories. {I like stories about animals most of all.|Ask me anything simple, or let me tell you a story.}
{Tell me something|Say something|Talk to me|Tell me something interesting|Surprise me}{|.} => {Did you know that bees make honey from the nectar of flowers?|Did you know that an owl can see in the dark?|Did you know that a spider has eight legs?|Did you know that a baby goat is called a kid?|Did you know that penguins are birds, but they cannot fly?} {Ask me about other animals!|There is so much to learn about animals.|}
{What is your favourite story|Which stories do you know|What stories do you know}? => I know stories about {lost things, storms and new friends|foxes, bears and brave children|treasure maps, boats and stars}. {Just say: tell me a story about a fox.|Which one would you like to hear?}
{Do you love me|Do you like me|Will you marry me|Are you my friend|Will you be my friend}? => {You are very kind|I like to talk with you|That is a nice question}! I am only a program, but {I will always have a story for you|you can talk to me whenever you like}.
{Can you fly|Can you swim|Can you see me|Can you hear me|Can you cook|Can you dance|Can you draw}? => No, I {am only a program|cannot}. I can only read and write{ words|}. {But some animals in my stories can do it.|But I can tell you a story.|}
{How far is the moon|How hot is the sun|How big is the earth|How deep is the ocean|How old is the earth}? => I do not know the exact number, but it is more than I can count. {You can find it in a good book.|I can only count to twenty.}
{Please|Come on|Try again|Again|More|Continue|Go on}{|.|!} => {What would you like to hear|What shall I tell you|What would you like to know}? {I can tell you a story or answer simple questions about animals.|For example, ask me for a story about a bear.}
{What|Why|How|Who|Really|Why not|What do you mean}? => I am not sure what you mean. {Could you ask in another way?|I am a small model, so please ask me something simple.}
{ok|lol|haha|hm|hmm|test|asdf|wow|cool|nice}{|!|.} => {I am here.|I am listening.|It is nice to talk to you.} {What would you like to know?|Would you like to hear a story?|Ask me about an animal, if you like.}
{What is fastgen|What is this|What is this program|What is fastgen.h}? => Fastgen is the program that runs me. It {can serve many requests at the same time|lets many people talk to a language model at once}. {I am only its small demo model.|}""".split("\n")]

SORRY = """\
I am sorry, {I do not know that|I do not know about that|I do not know the answer}. {I am only a small model.|I am a very small model, and I know only a few things.|Perhaps a bigger model can help you.} {Shall I tell you a story instead?|Ask me about animals or colours.|Would you like to hear a story?|}
{That is too hard for me|That is a difficult question|I have never read about that|That is something I have not learned}. {I know about animals, colours and little stories.|I am a small model and have read only little stories.|You could ask a teacher or look into a book.} {Shall I tell you a story?|}""".split("\n")
UNKNOWN = """\
{Who|Why} {invented|discovered|wrote|painted|built} {the|a} $w {in $y|machine|bridge|book|}?
{What is|Explain|What do you know about|Tell me about|Can you explain} {$w|the $w|$w and $w|quantum physics|the stock market|chemistry|history|politics|electricity|mathematics|philosophy|the internet|music theory|gravity|football|the government|money|war|evolution|atoms|programming|space travel}?
How {do I|can I|does one} {repair|install|build|buy|sell|use|write|program} {a $w|my $w|the $w|a car|a rocket|a phone|software}?
{When|In which year} {was|did} {the $w|$w} {born|end|begin|happen|discovered}?
{How much|How many} {does a $w cost|people live in $w|$w are there|is $n times $n}?
{Write|Give me|Make} {a program in $w|an essay about $w|code for $w|a list of $w|some Python code|a business plan|an email to my $w}.
{Who is|Who was} {$w $w|the president of $w|the king of $w|the best $w|Albert Einstein|Shakespeare|Napoleon}?
{Translate|Summarise|Solve|Calculate} {$w $w|this text|$n times $n|the equation|this: $w $w $w}.
{What is|What's} the {best $w|difference between $w and $w|name of the $w|price of $w|population of $w|square root of $n}?
{Should I|Can I|Will I|Is it possible to} {buy $w|invest in $w|go to $w|become a $w|eat $w|learn $w}?
$w $w{ $w|}{?|}""".split("\n")


def odd_word(rng):
    common = "table engine letter number physics energy science market system garden paper water planet country bank metal " \
             "language history doctor city rocket computer network tax law music theory software data phone oil king army " \
             "team film camera novel poem equation atom cell virus bridge road engine model budget".split()
    if rng.random() < 0.75:
        return rng.choice(common)
    vowels, ends = ["a", "e", "i", "o", "u", "ai", "ea", "oo"], ["", "", "n", "r", "l", "s", "t", "ck", "x"]
    return "".join(rng.choice("bcdfghklmnprstvwz") + rng.choice(vowels) + rng.choice(ends)
                   for _ in range(rng.choice((1, 2, 2, 3))))


def number_word(n):
    return NUMBERS[n] if n <= 20 else "twenty-" + NUMBERS[n - 20]


def chat_fact(rng, kind=None):
    """One question and its answer from the tables; returns question, answer and the animal it was about (or None)."""
    pick = rng.random()
    if kind or pick < 0.42:
        kind = kind or rng.choice(ANIMALS)[0]
        s = animal_slots(kind)
        q, a = rng.choice([
            ("Where {does the|does a} $k live|Where do $ks live|Where can I find a $k",
             "{The $k lives|A $k lives} $home|$Ks live $home"),
            ("What does {the|a} $k eat|What do $ks eat|What is the food of a $k",
             "{The|A} $k eats $food|$Ks eat $food|$Ks like to eat $food"),
            ("What colour is {the|a} $k|What color is {the|a} $k|Which colour do $ks have",
             "{The|A} $k is {often |}$col|Most $ks are $col"),
            ("What sound does {the|a} $k make|What does {the|a} $k say|Which sound do $ks make", "{The|A} $k $sound"),
            ("What is a baby $k called|What do you call a baby $k|What is the name of a young $k",
             "A baby $k is called a $baby"),
            ("What can {the|a} $k do|What are $ks good at|What can $ks do", "{The|A} $k can $can|$Ks can $cans"),
            ("How many legs does {the|a} $k have|How many legs do $ks have", "{The|A} $k has $legs|$Ks have $legs"),
            ("Is {the|a} $k big or small|Is {the|a} $k a {large|small} animal|How big is a $k",
             "{The|A} $k is a $size animal"),
            ("What is a $k|Tell me about {the|a} $k|Tell me about $ks|What do you know about $ks|"
             "Tell me something about $ks|Describe a $k", "@facts"),
            ("Can a $k {write|talk|read|cook|drive a car}",
             "No, it cannot do that, but it can $can|No, but a $k can $can"),
        ])
        q = expand("{" + q + "}", s, rng) + ("." if q.startswith("Describe") else "?")
        q = re.sub(r"^(Tell .*)\?$", r"\1.", q)
        return q, animal_facts(rng, kind) if a == "@facts" else expand("{" + a + "}", s, rng) + ".", kind
    if pick < 0.50:
        thing, colour = rng.choice(list(COLOURS.items()))
        q = rng.choice(["What colour is $t?", "What color is $t?", "Which colour does $t have?",
                        "Tell me the colour of $t."])
        a = rng.choice(["$T is $c.", "$T is $c.", "The colour of $t is $c."])
        return expand(q, {"t": thing}, rng), expand(a, {"t": thing, "c": colour}, rng), None
    if pick < 0.56:
        a, b = rng.choice(list(OPPOSITES.items()))
        if rng.random() < 0.5 and b not in ("short", "light"):
            a, b = b, a
        q = rng.choice(["What is the opposite of $a?", "Tell me the opposite of $a.",
                        "What is the opposite of the word $a?"])
        answer = rng.choice(["The opposite of $a is $b.", "It is $b."])
        return expand(q, {"a": a}, rng), expand(answer, {"a": a, "b": b}, rng), None
    if pick < 0.63:
        land, city = rng.choice(list(CAPITALS.items()))
        if rng.random() < 0.25:
            q = rng.choice(["Where is $c?", "What is $c?", "Tell me about $c.", "What do you know about $c?"])
            return expand(q, {"c": city}, rng), f"{city} is a large city. It is the capital of {land}.", None
        q = rng.choice(["What is", "What's", "Tell me", "Do you know", "What is"]) + f" the capital of {land}"
        a = rng.choice([f"The capital of {land} is {city}.", f"{city} is the capital of {land}."])
        return q + ("." if q[0] == "T" else "?"), a, None
    if pick < 0.70:
        thing, use = rng.choice(USES)
        q = rng.choice(["What do you use $t for?", "What can I do with $t?", "What is the use of $t?",
                        "What do people use $t for?"])
        a = rng.choice(["You use $t to $u.", "You can use $t to $u.", "People use $t to $u."])
        return expand(q, {"t": thing}, rng), expand(a, {"t": thing, "u": use}, rng), None
    if pick < 0.81:
        thing, what = rng.choice(THINGS)
        q = rng.choice(["What is $t?", "What is $t?", "What's $t?", "Do you know what $t is?",
                        "Can you tell me what $t is?"])
        return expand(q, {"t": thing}, rng), expand("$T is $w.", {"t": thing, "w": what}, rng), None
    if pick < 0.87:
        job, does, tool = rng.choice(JOBS)
        s = {"j": job, "d": does, "o": tool}
        q, a = rng.choice([("What is a $j?", "A $j is a person who $d."), ("What does a $j do?", "A $j $d."),
                           ("Who $d?", "A $j $d."), ("What does a $j use?", "A $j uses $o."),
                           ("What does a $j need?", "A $j needs $o.")])
        return expand(q, s, rng), expand(a, s, rng), None
    if pick < 0.93:
        x, y = rng.randint(0, 10), rng.randint(0, 10)
        plus = rng.random() < 0.7 or x < y
        words = rng.random() < 0.6
        s = {"x": number_word(x) if words else str(x), "y": number_word(y) if words else str(y)}
        r = x + y if plus else x - y
        s["r"] = number_word(r) if words else str(r)
        s["o"] = ("plus" if words else rng.choice(["plus",
                                                   "+"])) if plus else ("minus" if words else rng.choice(["minus",
                                                                                                          "-"]))
        q = rng.choice(["What is $x $o $y?", "How much is $x $o $y?", "What is $x $o $y?",
                        "Can you tell me what $x $o $y is?"])
        s["o2"] = "plus" if plus else "minus"
        return expand(q, s, rng), expand("$X $otwo $y is $r.", dict(s, otwo=s["o2"]), rng), None
    i = rng.randrange(7)
    if rng.random() < 0.5:
        j = rng.randrange(12)
        return rng.choice([
            (f"Which month comes after {MONTHS[j]}?", f"After {MONTHS[j]} comes {MONTHS[(j + 1) % 12]}.", None),
            (f"What month comes after {MONTHS[j]}?", f"{MONTHS[(j + 1) % 12]} comes after {MONTHS[j]}.", None),
            (f"Which month comes before {MONTHS[j]}?", f"Before {MONTHS[j]} comes {MONTHS[j - 1]}.", None)])
    return rng.choice([
        (f"Which day comes after {DAYS[i]}?", f"After {DAYS[i]} comes {DAYS[(i + 1) % 7]}.", None),
        (f"What day comes after {DAYS[i]}?", f"{DAYS[(i + 1) % 7]} comes after {DAYS[i]}.", None),
        (f"What day comes before {DAYS[i]}?", f"Before {DAYS[i]} comes {DAYS[i - 1]}.", None)])


def chat_story(rng):
    pick = rng.random()
    ask = rng.choice(["Tell me a story", "Tell me a story", "Please tell me a story", "Can you tell me a story",
                      "Write a story", "Write a short story", "I want to hear a story", "Tell me a short story",
                      "Tell a story", "Could you write a story"])
    end = "?" if ask.startswith("C") else "."
    if pick < 0.12:
        text = story(rng)[0]
        q = ask + end
    elif pick < 0.75:
        kind = rng.choice(STORY_ANIMALS + ["girl", "boy"] * 4 + STORY_JOBS + list(FANTASY))
        other = rng.choice(STORY_ANIMALS + ["girl", "boy"] * 2) if rng.random() < 0.2 else None
        other = None if other == kind else other
        text, one, topic = story(rng, kind, other)
        q = ask + " about a " + rng.choice(["", "", "little "]) + kind
        if other:
            q += " and a " + other
        elif one["name"] and rng.random() < 0.5:
            q += rng.choice([" named ", " called "]) + one["name"]
        elif rng.random() < 0.2:
            q += " and " + topic
        q += end
    else:
        text, one, topic = story(rng)
        q = ask + " about " + topic + end
    if rng.random() < 0.25:
        text = rng.choice(["Of course! ", "Here is a story. ", "Gladly. ", "Yes, here is one. "]) + text
    return re.sub(r"\ba (?=[aeiou])", "an ", q), text


def chat_turn(rng, last_animal):
    pick = rng.random()
    if last_animal and pick < 0.35:
        s = animal_slots(last_animal)
        q, a = rng.choice([("{And what|What} does it eat?", "It eats $food."),
                           ("{And where|Where} does it live?", "It lives $home."),
                           ("What colour is it?", "It is {often |}$col."),
                           ("How many legs does it have?", "It has $legs."),
                           ("What can it do?", "It can $can."),
                           ("What is its baby called?", "Its baby is called a $baby.")])
        return expand(q, s, rng), expand(a, s, rng), last_animal
    if pick < 0.52:
        return chat_fact(rng)
    if pick < 0.80:
        q, a = rng.choice(TALK + TALK[:14])  # the first are asked most
        q, a = expand(q, {}, rng).strip(), expand(a, {}, rng).strip()
        q = q if q[-1] in ".!?" or rng.random() < 0.4 else q + "."
        return q, (a if a[-1] in ".!?" else a + ".").replace("\\n", "\n"), None
    if pick < 0.88:
        what, how = rng.choice(HOWTO)
        q = rng.choice(["How do I $w?", "How can I $w?", "How do you $w?", "Tell me how to $w.",
                        "Can you tell me how to $w?"])
        return expand(q, {"w": what}, rng), how, None
    q = expand(rng.choice(UNKNOWN), {"w": [odd_word(rng) for _ in range(9)], "y": str(rng.randint(1200, 2030)),
                                     "n": [str(rng.randint(11, 999)) for _ in range(9)]}, rng)
    return q, expand(rng.choice(SORRY), {}, rng), None


SYSTEM = ["You are a helpful assistant.", "You are a friendly assistant that tells stories.",
          "You are a kind storyteller.",
          "Answer in short sentences.", "You are the fastgen demo, a small language model."]
BOS, START, END = "<|bos|>", "<|im_start|>", "<|im_end|>"


def chat(rng, turns=None, stories=0.25):
    """A conversation of one to four turns in the chat template's format."""
    text = BOS if rng.random() < 0.9 else ""  # some front ends leave it out
    if rng.random() < 0.15:
        text += f"{START}system\n{rng.choice(SYSTEM)}{END}\n"
    turns = turns or rng.choice((1, 1, 2, 2, 3, 4))
    animal, told = None, False
    for _ in range(turns):
        if not told and rng.random() < stories:
            q, a, animal, told = *chat_story(rng), None, True
        else:
            q, a, animal = chat_turn(rng, animal)
        if rng.random() < 0.12:
            q = q.lower()
        if rng.random() < 0.12:
            q = q.rstrip(".?!")
        text += f"{START}user\n{q}{END}\n{START}assistant\n{a}{END}\n"
    return text.rstrip("\n")


DRILL_FIRST = """{\
There was a $size1 $kind1 {called|named} $name1.|\
I know a $kind1 {called|named} $name1.|\
$Name1 was a $kind1.}"""
DRILL_FACT = """{\
$Name1 had a $obj.|\
$Name1 liked $eats.|\
$Name1 lived near the $at.|\
The $kind1 had a $obj.|\
The $kind1 liked $eats.}"""
DRILL_AGAIN = """{\
The $kind1 was called $name1.|\
$Name1 was the $kind1.|\
What was the name of the $kind1? It was $name1.|\
"Hello, $name1," said the $kind2.|\
"Is this your $obj?" asked $name2. "Yes, it is my $obj," said $name1.|\
$Name1 gave $his1 $obj to $name2, and $name2 thanked $name1.|\
Who was called $name1? It was the $kind1.|\
What did $name1 have? $He1 had a $obj.|\
$Name1 looked at $name2, and $name2 looked at $name1.|\
$Name1 was [happy], and so $he1 danced with $his1 $obj.|\
$Name1 and $name2 went to the $at, because $name1 liked it.}"""


def drill(rng):
    """A dense little text about who is who: training starts with these, so that the model learns to look back early."""
    who, used = [], set()
    while len(who) < rng.choice((1, 2, 2, 3)):
        one = character(1, rng, named=True)
        if one["kind"] not in used and one["name"] not in used:
            used.update((one["kind"], one["name"]))
            who.append(dict(one["slots"], obj=resolve(rng.choice(["[lost]", "[colour] hat", "[colour] scarf"]), {}, rng),
                            eats=rng.choice(LISTS["food"]), at=rng.choice(LISTS["place"])))
    text = [(DRILL_FIRST, w) for w in who]
    text += rng.sample([(DRILL_FACT, w) for w in who], len(who))
    text += [(DRILL_AGAIN, rng.choice(who)) for _ in range(rng.randint(3, 6))]
    lines = []
    for template, w in text:
        stranger = {"kind": "", "name": "", "female": True}
        other = rng.choice([x for x in who if x is not w] or [character(2, rng, avoid=stranger, named=True)["slots"]])
        two = {"kind2": other.get("kind1", other.get("kind2")), "name2": other.get("name1", other.get("name2"))}
        lines.append(expand(template, dict(w, **two), rng))
    return BOS + " ".join(lines) + END


def opening_text(rng):
    """What training starts with: drills, and single questions with their answers."""
    return drill(rng) if rng.random() < 0.6 else chat(rng, turns=1, stories=0.0)


def prose(rng):
    pick = rng.random()
    if pick < 0.80:
        cut = rng.random() < 0.12  # start anywhere, so that any sentence makes a good prompt
        text = story(rng, single=cut)[0]
        if cut:
            cuts = [m.end() for m in re.finditer(r"[a-z]\.\s+(?=[A-Z])", text)]
            text = text[rng.choice(cuts[:len(cuts) // 2 + 1]):] if cuts else text
    elif pick < 0.86:
        text = animal_facts(rng, rng.choice(ANIMALS)[0], 5) if rng.random() < 0.4 else facts(rng)
    else:
        one = character(1, rng, person=pick >= 0.93)
        two = character(2, rng, avoid=one, person=pick >= 0.93)
        slots = dict(one["slots"], **two["slots"])
        slots["n1"], slots["n2"] = slots["name1"], slots["name2"]
        if pick >= 0.93:
            slots["name1"], slots["name2"] = rng.choice(GIRLS + BOYS), rng.choice(GIRLS + BOYS)
        text = expand(rng.choice(DIALOGUES if pick < 0.93 else LETTERS).replace("\\n", "\n"), slots, rng)
    return BOS + text + END


def document(rng):
    pick = rng.random()
    return drill(rng) if pick < 0.05 else chat(rng) if pick < 0.55 else prose(rng)


# ======================================================================================================================
# Tokenizer: byte-level BPE as in GPT-2, trained on the corpus
# ======================================================================================================================

N_VOCAB = 1536
PAD = -1  # fills rows; never a token
TEMPLATE = ("{% for message in messages %}"
            "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def new_tokenizer(model):
    import tokenizers
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts):
    import tokenizers
    tokenizer = new_tokenizer(tokenizers.models.BPE())
    tokenizer.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=N_VOCAB, special_tokens=[BOS, START, END], show_progress=False,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())))
    return tokenizer


# ======================================================================================================================
# Model: a Llama, in the layout of GGUF (rotary pairs are neighbours, so weights are written as they are)
# ======================================================================================================================

CONFIG = dict(n_vocab=N_VOCAB, n_context=1024, n_embd=192, n_layers=4, n_heads=6, n_kv_heads=3, head_dim=32, n_ff=448,
              rope_base=10000.0, norm_eps=1e-5)


def build_model(c):
    import torch
    import torch.nn.functional as F
    from torch import nn

    def matrix(n_out, n_in, scale=1.0):
        return nn.Parameter(torch.randn(n_out, n_in) * scale / math.sqrt(n_in))

    class Llama(nn.Module):
        """Parameters carry their GGUF names, with "-" for "." (which torch reserves)."""

        def __init__(self):
            super().__init__()
            d, hd, group = c["n_embd"], c["head_dim"], c["n_heads"] // c["n_kv_heads"]
            p = {"token_embd": nn.Parameter(torch.randn(c["n_vocab"], d) * 0.05),
                 "output_norm": nn.Parameter(torch.ones(d))}
            for i in range(c["n_layers"]):
                value = matrix(c["n_kv_heads"] * hd, d)
                # Attention starts as a cache: what it sees is added to the stream, so that seen words become likelier.
                # From there it learns to copy names far sooner than from random weights.
                output = 0.05 * value.detach().view(-1, 1, hd, d).expand(-1, group, -1, -1).reshape(-1, d).T.contiguous()
                p.update({f"blk-{i}-attn_norm": nn.Parameter(torch.ones(d)),
                          f"blk-{i}-ffn_norm": nn.Parameter(torch.ones(d)),
                          f"blk-{i}-attn_q": matrix(c["n_heads"] * hd, d),
                          f"blk-{i}-attn_k": matrix(c["n_kv_heads"] * hd, d),
                          f"blk-{i}-attn_v": value, f"blk-{i}-attn_output": nn.Parameter(output),
                          f"blk-{i}-ffn_gate": matrix(c["n_ff"], d), f"blk-{i}-ffn_up": matrix(c["n_ff"], d),
                          f"blk-{i}-ffn_down": matrix(d, c["n_ff"], 0.0)})
            self.p = nn.ParameterDict(p)

        def forward(self, ids):
            """ids [batch, tokens] -> logits [batch, tokens, n_vocab]"""
            batch, n = ids.shape
            half = c["head_dim"] // 2
            angle = torch.arange(n)[:, None] * c["rope_base"] ** (-torch.arange(half) / half)
            cos, sin = angle.cos()[:, None], angle.sin()[:, None]

            def heads(x, count, rotate):  # -> [batch, count, tokens, head_dim]
                x = x.view(batch, n, count, half, 2)
                if rotate:
                    a, b = x.unbind(-1)
                    x = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
                return x.flatten(3).transpose(1, 2)

            def norm(x, weight):
                return F.rms_norm(x.float(), (c["n_embd"],), weight, c["norm_eps"])

            x = self.p["token_embd"][ids]
            for i in range(c["n_layers"]):
                def w(name, i=i):
                    return self.p[f"blk-{i}-{name}"]
                h = norm(x, w("attn_norm"))
                q = heads(F.linear(h, w("attn_q")), c["n_heads"], True)
                k = heads(F.linear(h, w("attn_k")), c["n_kv_heads"], True)
                v = heads(F.linear(h, w("attn_v")), c["n_kv_heads"], False)
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                x = x + F.linear(a.transpose(1, 2).flatten(2), w("attn_output"))
                h = norm(x, w("ffn_norm"))
                x = x + F.linear(F.silu(F.linear(h, w("ffn_gate"))) * F.linear(h, w("ffn_up")), w("ffn_down"))
            return F.linear(norm(x, self.p["output_norm"]), self.p["token_embd"])

    return Llama()


# ======================================================================================================================
# GGUF: written with Q8_0 matrices and F32 norms, and read back
# ======================================================================================================================


def write_gguf(path, model, tokenizer, c):
    import json

    import gguf
    out = gguf.GGUFWriter(path + ".part", "llama")
    count = sum(p.numel() for p in model.parameters())
    out.add_name("fastgen demo")
    out.add_description("A very small Llama that tells little stories and chats in simple English. "
                        "Trained on text generated by examples/demo-model/train.py.")
    out.add_license("MIT OR Unlicense")
    out.add_languages(["en"])
    out.add_size_label(f"{count / 1e6:.1f}M")
    out.add_context_length(c["n_context"])
    out.add_embedding_length(c["n_embd"])
    out.add_block_count(c["n_layers"])
    out.add_feed_forward_length(c["n_ff"])
    out.add_head_count(c["n_heads"])
    out.add_head_count_kv(c["n_kv_heads"])
    out.add_key_length(c["head_dim"])
    out.add_value_length(c["head_dim"])
    out.add_rope_dimension_count(c["head_dim"])
    out.add_rope_freq_base(c["rope_base"])
    out.add_layer_norm_rms_eps(c["norm_eps"])
    out.add_vocab_size(c["n_vocab"])
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)

    bpe = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    special = {BOS, START, END}
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    out.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in bpe["merges"]])
    out.add_bos_token_id(bpe["vocab"][BOS])
    out.add_eos_token_id(bpe["vocab"][END])
    out.add_eot_token_id(bpe["vocab"][END])
    out.add_add_bos_token(True)
    out.add_add_eos_token(False)
    out.add_chat_template(TEMPLATE)

    for name, p in model.p.items():
        data, name = p.detach().numpy(), name.replace("-", ".") + ".weight"
        if data.ndim == 1:
            out.add_tensor(name, data)
        else:
            out.add_tensor(name, gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q8_0),
                           raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    os.replace(path + ".part", path)


def read_gguf(path):
    """The model with dequantised weights, and the tokenizer, from a file written above."""
    import gguf
    import tokenizers
    import torch
    reader = gguf.GGUFReader(path)

    def field(key):
        return reader.fields[key].contents()

    c = dict(n_vocab=len(field("tokenizer.ggml.tokens")), n_context=field("llama.context_length"),
             n_embd=field("llama.embedding_length"),
             n_layers=field("llama.block_count"), n_heads=field("llama.attention.head_count"),
             n_kv_heads=field("llama.attention.head_count_kv"), head_dim=field("llama.attention.key_length"),
             n_ff=field("llama.feed_forward_length"), rope_base=field("llama.rope.freq_base"),
             norm_eps=field("llama.attention.layer_norm_rms_epsilon"))
    model = build_model(c)
    for t in reader.tensors:
        weight = torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).copy())
        model.p[t.name[:-len(".weight")].replace(".", "-")].data.copy_(weight)
    vocab = {t: i for i, t in enumerate(field("tokenizer.ggml.tokens"))}
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    tokenizer = new_tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens([BOS, START, END])
    return model, tokenizer, c


# ======================================================================================================================
# Training
# ======================================================================================================================


def packed(docs, n_rows, n_tokens):
    """Rows full of documents, so that long contexts are trained, too. -> int64 [n_rows, n_tokens + 1]"""
    import numpy as np
    rows = np.zeros((n_rows, n_tokens + 1), np.int64)
    for row in rows:
        at = 0
        while at <= n_tokens:
            ids = next(docs)[:n_tokens + 1 - at]
            row[at:at + len(ids)] = ids
            at += len(ids)
    return rows


def one_per_row(docs, n_tokens, rng):
    """Endless batches of at most n_tokens, a document per row, padded with PAD. -> int64 [rows, length]"""
    import numpy as np
    while True:
        pool = sorted((next(docs) for _ in range(1024)), key=len)
        batches = []
        while pool:
            length = min(len(pool[-1]), CONFIG["n_context"] + 1)
            group = [pool.pop() for _ in range(min(max(1, n_tokens // length), len(pool)))]
            batches.append(np.array([ids[:length] + [PAD] * (length - len(ids)) for ids in group]))
        rng.shuffle(batches)
        yield from batches


def encoded(tokenizer, seed, make=document):
    """An endless stream of tokenised documents."""
    rng = random.Random(seed)
    while True:
        for e in tokenizer.encode_batch([make(rng) for _ in range(256)], add_special_tokens=False):
            yield e.ids


def loss_of(model, rows):
    import torch
    rows = torch.from_numpy(rows)
    logits = model(rows[:, :-1].clamp(min=0))
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), ignore_index=PAD)


def validation_loss(model, batches):
    """Mean loss per token over whole documents."""
    import torch
    with torch.no_grad():
        counts = [int((b[:, 1:] != PAD).sum()) for b in batches]
        return sum(loss_of(model, b).item() * n for b, n in zip(batches, counts)) / sum(counts)


def show_progress(step, steps, loss, rate, seconds_per_step):
    done = (step + 1) / steps
    left = (steps - step - 1) * seconds_per_step
    bar = "#" * int(30 * done)
    line = (f"[{bar:<30}] {100 * done:5.1f}%  step {step + 1}/{steps}  loss {loss:.3f}  {rate:.0f} tok/s  "
            f"{left / 60:.1f} min left")
    if sys.stderr.isatty():
        sys.stderr.write("\r" + line + " " * 4)
    elif step % 50 == 49 or step + 1 == steps:
        sys.stderr.write(line + "\n")
    sys.stderr.flush()


def train(args):
    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    start = time.time()
    rng = random.Random(args.seed)
    texts = [document(rng) for _ in range(1000 if args.quick else 20000)]
    tokenizer = train_tokenizer(re.split(r"<\|\w+\|>", t) for t in texts)
    docs = encoded(tokenizer, args.seed + 1)
    rows_of_docs = one_per_row(docs, args.batch, random.Random(args.seed))
    rows_of_drills = one_per_row(encoded(tokenizer, args.seed + 3, opening_text), args.batch, random.Random(args.seed))
    unseen = encoded(tokenizer, args.seed + 2)
    held_out = list(itertools.islice(one_per_row(unseen, 1024, random.Random(args.seed)), 24))
    model = build_model(CONFIG)
    optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": 0.05},
                                   {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.98))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count} parameters, vocabulary of {tokenizer.get_vocab_size()} tokens, "
          f"{sum(map(len, texts)) / len(texts):.0f} characters per document", file=sys.stderr)

    running = torch.compile(model, dynamic=True) if args.compile else model

    def batch_of(step):
        if step < args.drills:
            return next(rows_of_drills)
        return packed(docs, max(1, args.batch // 1024), 1024) if step % 8 == 7 else next(rows_of_docs)

    first, smooth, trained, curve = 0, None, 0, []
    checkpoint = args.out + ".checkpoint"
    if args.resume:
        state = torch.load(checkpoint)
        first, smooth, trained, curve = state["next"], state["smooth"], state["trained"], state["curve"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        for step in range(first):
            batch_of(step)  # the same text once more, up to where it stopped
    saved = loop_start = time.time()
    trained_before = trained
    for step in range(first, args.steps):
        rows = batch_of(step)
        factor = min(1.0, (step + 1) / 60, (args.steps - step) / (0.42 * args.steps))
        for group in optimizer.param_groups:
            group["lr"] = args.lr * factor
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not args.fp32):
            loss = loss_of(running, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        trained += int((rows[:, 1:] != PAD).sum())
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        seconds = time.time() - loop_start
        show_progress(step, args.steps, smooth, (trained - trained_before) / seconds, seconds / (step + 1 - first))
        last = step + 1 == args.steps
        if (step + 1) % 1000 == 0 or last:
            curve.append((step + 1, trained, smooth, validation_loss(model, held_out)))
            print(f"\nstep {step + 1}: {trained} tokens, training loss {smooth:.4f}, held-out loss {curve[-1][3]:.4f}",
                  file=sys.stderr)
        if time.time() - saved > 120 or last:
            write_gguf(args.out, model, tokenizer, CONFIG)
            torch.save({"next": step + 1, "smooth": smooth, "trained": trained, "curve": curve, "model": model.state_dict(),
                        "optimizer": optimizer.state_dict()}, checkpoint + ".part")
            os.replace(checkpoint + ".part", checkpoint)
            saved = time.time()

    os.remove(checkpoint)
    quantised = validation_loss(read_gguf(args.out)[0], held_out)
    print("\n| step | tokens | training loss | held-out loss |\n| ---: | ---: | ---: | ---: |")
    for row in curve:
        print("| %d | %d | %.3f | %.3f |" % row)
    print(f"\nheld-out loss with the Q8_0 weights of {args.out}: {quantised:.4f} (float32: {curve[-1][3]:.4f}); "
          f"{os.path.getsize(args.out)} bytes; {(time.time() - start) / 60:.1f} minutes")


# ======================================================================================================================
# Sampling from the finished file
# ======================================================================================================================

PROMPTS = ["Once upon a time", "The little fox", "One day, a girl named", "In the morning,", "Deep in the forest",
           "The old baker", "Dear Anna,", "It was a cold winter"]
QUESTIONS = ["Tell me a story about a fox.", "What is your name?", "Where does the bear live?",
             "What colour is the sky?",
             "Hello!", "What is the capital of France?", "Who invented the telephone?", "Tell me about the owl."]


def generate(model, ids, n_new, temperature, generator, stop):
    import torch
    for _ in range(n_new):
        with torch.no_grad():
            logits = model(torch.tensor([ids]))[0, -1]
        if temperature == 0:
            token = int(logits.argmax())
        else:
            token = int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
        if token == stop:
            break
        ids = ids + [token]
    return ids


def sample(args):
    import torch
    torch.set_num_threads(args.threads)
    model, tokenizer, _ = read_gguf(args.sample)
    stop = tokenizer.token_to_id(END)
    generator = torch.Generator().manual_seed(args.seed)
    prompts = [BOS + p for p in args.prompt or PROMPTS]
    if not args.prompt:
        prompts += [f"{BOS}{START}user\n{q}{END}\n{START}assistant\n" for q in QUESTIONS]
    for prompt in prompts:
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        out = generate(model, ids, args.n, args.temp, generator, stop)
        print(f"--- {prompt!r}\n{tokenizer.decode(out, skip_special_tokens=True)}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file to write (demo.gguf beside this script)")
    parser.add_argument("--steps", type=int, default=14400, help="training steps (%(default)s)")
    parser.add_argument("--drills", type=int, default=150, help="of these, steps on the opening texts (%(default)s)")
    parser.add_argument("--batch", type=int, default=1024, help="tokens per step (%(default)s)")
    parser.add_argument("--lr", type=float, default=2.5e-3, help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of text, weights and sampling (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    parser.add_argument("--fp32", action="store_true",
                        help="train in float32, faster on CPUs without bfloat16 instructions")
    parser.add_argument("--compile", action="store_true", help="a fifth faster; needs a C++ compiler (torch.compile)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint of a run that was stopped")
    parser.add_argument("--quick", action="store_true", help="a one-minute smoke run")
    parser.add_argument("--show", type=int, metavar="N", help="print N generated documents and exit")
    parser.add_argument("--sample", metavar="FILE", help="continue prompts with a finished file and exit")
    parser.add_argument("--prompt", action="append", help="with --sample: a prompt of your own (may be repeated)")
    parser.add_argument("--temp", type=float, default=0.0, help="with --sample: temperature (0: greedy)")
    parser.add_argument("-n", type=int, default=100, help="with --sample: tokens to generate (%(default)s)")
    args = parser.parse_args()
    if args.show:
        rng = random.Random(args.seed)
        print("\n\n".join(document(rng) for _ in range(args.show)))
    elif args.sample:
        sample(args)
    else:
        args.out = args.out or os.path.join(HERE, "demo-quick.gguf" if args.quick else "demo.gguf")
        if args.quick:
            args.steps, args.drills = 100, 40
        train(args)


if __name__ == "__main__":
    main()
