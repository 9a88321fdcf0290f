"""Make `facts/`: questions about invented people, towns and novels, in the schema of HotpotQA.

    python examples/datasets/make_facts.py [FOLDER]

Every entity has one paragraph. `single` asks for what one paragraph says, `multi` for what only two of them say
together; each row has its supporting paragraphs among eight others. Names are unique, so every question has one
answer. The output is a function of this file alone.
"""

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PEOPLE, TOWNS, QUESTIONS, PARAGRAPHS = 160, 48, 120, 10
_ONSETS = "b br d dr f g gr h k kl l m n p pr r s st t tr v w z"
_VOWELS = ["a", "e", "i", "o", "u", "ae", "ei", "ia", "o", "u"]
_CODAS = ["", "l", "n", "r", "s", "th", "nd", "rk", "m"]
_TRADES = "cartographer glassblower botanist beekeeper organist shipwright astronomer bookbinder physician weaver"
_CRAFTS = "blue pottery|smoked cheese|church bells|woollen carpets|pear cider|stone bridges|paper kites|iron lamps"
_THEMES = "a lighthouse keeper|two rival bakeries|a lost expedition|a forged painting|a winter siege|a talking clock"
_NOUNS = "Orchard Ferry Lantern Harbour Winter Letter Mill Garden Mirror Bridge Archive Meadow Anchor Island"
_ADJECTIVES = "Silent Crimson Hollow Borrowed Northern Patient Broken Golden Distant Paper Hidden Restless"


@dataclass(frozen=True)
class Entity:
    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    text: str
    answer: str
    kind: str  # single, bridge, comparison
    supports: tuple[tuple[Entity, int], ...]  # with the sentence that counts


class Names:
    """Invented words, each given out once."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._given: set[str] = set()

    def word(self, syllables: int) -> str:
        while True:
            parts = (self._rng.choice(_ONSETS.split()) + self._rng.choice(_VOWELS) for _ in range(syllables))
            word = ("".join(parts) + self._rng.choice(_CODAS)).capitalize()
            if len(word) > 3 and word not in self._given:
                self._given.add(word)
                return word


def world(rng: random.Random) -> tuple[list[Entity], list[Question], list[Question]]:
    """All paragraphs, the single-hop questions and the two-hop ones."""
    names = Names(rng)
    towns = [_town(names, rng) for _ in range(TOWNS)]
    titles = [f"The {a} {n}" for a in _ADJECTIVES.split() for n in _NOUNS.split()]
    rng.shuffle(titles)
    entities = [town for town, _, _ in towns]
    single: list[Question] = []
    multi: list[Question] = []
    for town, river, founder in towns:
        single.append(Question(f"Which river flows through {town.title}?", river, "single", ((town, 1),)))
        single.append(Question(f"Who founded the town of {town.title}?", founder, "single", ((town, 2),)))
    earlier: tuple[Entity, int] | None = None
    for title in titles[:PEOPLE]:
        town, river, founder = rng.choice(towns)
        name, born = f"{names.word(2)} {names.word(3)}", rng.randrange(1801, 1900)
        published = born + rng.randrange(24, 60)
        person = _person(name, born, town.title, title, rng)
        novel = _novel(title, name, published, rng)
        entities += [person, novel]
        single += [
            Question(f"In which town was {name} born?", town.title, "single", ((person, 1),)),
            Question(f"In what year was the novel {title} published?", str(published), "single", ((novel, 1),)),
        ]
        for text, answer, *supports in (
            (f"Which river flows through the town where {name} was born?", river, (person, 1), (town, 1)),
            (f"Who founded the town in which {name} was born?", founder, (person, 1), (town, 2)),
            (f"In which town was the author of the novel {title} born?", town.title, (novel, 0), (person, 1)),
        ):
            multi.append(Question(text, answer, "bridge", tuple(supports)))
        if earlier and earlier[1] != born:
            other, other_born = earlier
            first = name if born < other_born else other.title
            text = f"Who was born earlier, {other.title} or {name}?"
            multi.append(Question(text, first, "comparison", ((other, 1), (person, 1))))
        earlier = (person, born)
    return entities, single, multi


def _town(names: Names, rng: random.Random) -> tuple[Entity, str, str]:
    name, river = names.word(2), names.word(2)
    founder = f"{names.word(2)} {names.word(2)}"
    sentences = (
        f"{name} is a market town of about {rng.randrange(2, 90)},{rng.randrange(100, 999)} people.",
        f"The river {river} flows through {name} from north to south.",
        f"It was founded in {rng.randrange(1102, 1590)} by {founder}.",
        f"{name} is known for its {rng.choice(_CRAFTS.split('|'))}.",
    )
    return Entity(name, sentences), river, founder


def _person(name: str, born: int, town: str, title: str, rng: random.Random) -> Entity:
    return Entity(
        name,
        (
            f"{name} was {_with_article(rng.choice(_TRADES.split()))} and writer.",
            f"{name} was born in {born} in {town}.",
            f"A long stay abroad led to the novel {title}.",
            f"The last {rng.choice(('letters', 'diaries', 'drawings'))} were found {rng.randrange(3, 70)} years later.",
        ),
    )


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _novel(title: str, author: str, year: int, rng: random.Random) -> Entity:
    return Entity(
        title,
        (
            f"{title} is a novel by {author}.",
            f"It was published in {year} and tells of {rng.choice(_THEMES.split('|'))}.",
            f"The first edition had {rng.randrange(90, 700)} pages.",
        ),
    )


def row_of(question: Question, number: int, name: str, entities: list[Entity], rng: random.Random) -> dict[str, Any]:
    supports = [entity for entity, _ in question.supports]
    others = rng.sample([entity for entity in entities if entity not in supports], PARAGRAPHS - len(supports))
    context = [*supports, *others]
    rng.shuffle(context)
    return {
        "id": f"facts-{name}-{number:03d}",
        "question": question.text,
        "answer": question.answer,
        "type": question.kind,
        "level": "easy" if question.kind == "single" else "medium",
        "supporting_facts": {
            "title": [entity.title for entity in supports],
            "sent_id": [sentence for _, sentence in question.supports],
        },
        "context": {
            "title": [entity.title for entity in context],
            "sentences": [list(entity.sentences) for entity in context],
        },
    }


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(20250101)
    entities, single, multi = world(rng)
    for name, questions in (("single", single), ("multi", multi)):
        rows = [row_of(q, i, name, entities, rng) for i, q in enumerate(rng.sample(questions, QUESTIONS))]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("facts"))
