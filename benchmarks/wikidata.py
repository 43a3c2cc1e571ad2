"""Enrich a generated Wikidata dump from start to end: time and memory of each step.

    python benchmarks/wikidata.py --facts 46000 --langs 20 --to wikidata.json
    python benchmarks/wikidata.py --run wikidata.json --into et,te --work work --effort quick

The first command writes the dump, the second runs `prixlm enrich` on it and prints a Markdown table
(what the command prints goes to stderr). A step ends when the folder's `work.json` has its time.
Its memory is that of all processes together, where shared pages count once for each process.

The dump has exactly `--facts` statements about countries, cities, universities, people and books,
and a date of birth for each person, which the import leaves out. Names are syllables, spelled by
each language's own rules in 11 scripts, so the names of one item are alike across languages.
Occupations and genres are other words in each language. A quarter of the labels is missing. Objects
follow Zipf's law. Some facts follow from others, and four in five of these are stated: inverses
(capital and capital of, father and child), symmetry (spouse), and compositions (citizenship is the
country of the place of birth).
"""

import argparse
import bisect
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

CONSONANTS, VOWELS = "ptkbdgmnslrv", "aeiou"
# Letters for these 12 consonants and 5 vowels; "-" is no letter.
ALPHABETS = {
    **dict.fromkeys(("en", "es", "it", "et"), "p t k b d g m n s l r v a e i o u"),
    "de": "p t k b d g m n s l r w a e i o u",
    "fr": "p t qu b d gu m n s l r v a é i o ou",
    "fi": "p t k p t k m n s l r v a e i o u",
    "hu": "p t k b d g m n sz l r v á e i ó u",
    "tr": "p t k b d g m n s l r v a e i o ü",
    "ru": "п т к б д г м н с л р в а е и о у",
    "el": "π τ κ μπ ντ γκ μ ν σ λ ρ β α ε ι ο ου",
    "ka": "პ ტ კ ბ დ გ მ ნ ს ლ რ ვ ა ე ი ო უ",
    "he": "פ ט ק ב ד ג מ נ ס ל ר ו א - י ו ו",
    "ar": "ب ت ك ب د غ م ن س ل ر ف ا - ي و و",
    # Vowels are signs of their consonant, which has an `a` without one.
    **dict.fromkeys(("hi", "mr"), "प त क ब द ग म न स ल र व - े ि ो ु"),
    "te": "ప త క బ ద గ మ న స ల ర వ - ె ి ొ ు",
}
# A letter for each consonant with each of the five vowels.
KATAKANA = (
    *("パペピポプ", "タテチトツ", "カケキコク", "バベビボブ", "ダデヂドヅ", "ガゲギゴグ"),
    *("マメミモム", "ナネニノヌ", "サセシソス", "ラレリロル", "ラレリロル", "ワヱヰヲヴ"),
)
THAI_CONSONANTS, THAI_VOWELS = "ปตกบดคมนสลรว", ("{}า", "เ{}", "{}ิ", "โ{}", "{}ุ")
# Unicode numbers the syllables of Hangul by initial, vowel and final.
HANGUL_INITIALS, HANGUL_VOWELS = (17, 16, 15, 7, 3, 0, 6, 2, 9, 5, 5, 7), (0, 5, 20, 8, 13)
LANGUAGES = (
    *("en", "de", "fr", "es", "ru", "ja", "et", "te", "fi", "ko"),
    *("el", "ar", "hi", "th", "it", "hu", "tr", "mr", "he", "ka"),
)
"""All languages, in the order in which `--langs` takes them."""
# fmt: off
PROPERTIES = {
    "P17": "country", "P19": "place of birth", "P22": "father", "P26": "spouse",
    "P27": "country of citizenship", "P36": "capital", "P37": "official language", "P40": "child",
    "P50": "author", "P69": "educated at", "P106": "occupation", "P136": "genre",
    "P159": "headquarters location", "P407": "language of work or name", "P800": "notable work",
    "P1376": "capital of",
}
# fmt: on
MISSING = 0.25
"""Share of the labels that are missing in each language."""
STATED = 0.8
"""Share of the facts that follow from others and are stated."""

Word = tuple[tuple[int, int], ...]
"""Syllables, each as the numbers of its consonant and its vowel."""


@dataclass
class World:
    """Items by number, with the words of their names and their statements."""

    rng: random.Random
    names: list[tuple[Word, ...]] = field(default_factory=list)
    translated: set[int] = field(default_factory=set)
    people: set[int] = field(default_factory=set)
    facts: dict[tuple[int, str, int], None] = field(default_factory=dict)

    def word(self, low: int, high: int) -> Word:
        """Return a new word of `low` to `high` syllables."""
        draw, size = self.rng.randrange, self.rng.randint(low, high)
        return tuple((draw(len(CONSONANTS)), draw(len(VOWELS))) for _ in range(size))

    def add(self, *words: Word) -> int:
        """Add an item, and return its number."""
        self.names.append(words)
        return len(self.names) - 1

    def state(self, subject: int, relation: str, object_: int, chance: float = 1.0) -> None:
        """State a fact with a given probability."""
        if self.rng.random() < chance:
            self.facts[subject, relation, object_] = None


class Zipf:
    """Draws from a sequence, the n-th with a weight of 1/n."""

    def __init__(self, rng: random.Random, items: Sequence[int]) -> None:
        self.rng, self.items = rng, items
        self.sums = list(itertools.accumulate(1 / n for n in range(1, len(items) + 1)))

    def draw(self) -> int:
        return self.items[bisect.bisect(self.sums, self.rng.random() * self.sums[-1])]


def make_world(num_facts: int, seed: int = 0) -> World:
    """Return items with exactly `num_facts` statements."""
    world = World(random.Random(seed))
    rng = world.rng
    countries = [world.add(world.word(2, 4)) for _ in range(max(5, num_facts // 500))]
    tongues = [world.add(world.word(2, 3)) for _ in range(max(3, num_facts // 1500))]
    language_of = {country: Zipf(rng, tongues).draw() for country in countries}
    country_of = _add_places(world, countries, language_of, max(20, num_facts // 40))
    jobs = [world.add(world.word(2, 4)) for _ in range(60)]
    genres = [world.add(world.word(2, 4)) for _ in range(30)]
    world.translated.update(jobs, genres)
    cities = list(country_of)
    schools: dict[int, list[int]] = {country: [] for country in countries}
    for city in rng.sample(cities, len(cities) // 5):
        school = world.add(world.names[city][0], world.word(1, 2))
        schools[country_of[city]].append(school)
        world.state(school, "P159", city)
        world.state(school, "P17", country_of[city], STATED)
    city_draw, job_draw, genre_draw = Zipf(rng, cities), Zipf(rng, jobs), Zipf(rng, genres)

    def add_person(family: Word, home: int, job: int) -> int:
        person = world.add(world.word(2, 3), family)
        world.people.add(person)
        country = country_of[home]
        world.state(person, "P19", home)
        world.state(person, "P27", country, STATED)
        world.state(person, "P106", job)
        if schools[country]:
            world.state(person, "P69", rng.choice(schools[country]), 0.5)
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            book = world.add(world.word(1, 3), world.word(2, 4))
            world.state(book, "P50", person)
            world.state(person, "P800", book, STATED)
            world.state(book, "P407", language_of[country], STATED)
            world.state(book, "P136", genre_draw.draw())
        return person

    while len(world.facts) < num_facts:
        family, home, job = world.word(2, 4), city_draw.draw(), job_draw.draw()
        parents = [add_person(family, home, j) for j in (job, job_draw.draw())]
        for one, other in (parents, parents[::-1]):
            world.state(one, "P26", other, STATED)
        for _ in range(rng.randint(0, 3)):
            # Children often stay at home and do what their father does.
            city = home if rng.random() < 0.6 else city_draw.draw()
            child = add_person(family, city, job if rng.random() < 0.5 else job_draw.draw())
            world.state(child, "P22", parents[0], STATED)
            world.state(parents[0], "P40", child, STATED)
    for fact in list(world.facts)[num_facts:]:
        del world.facts[fact]
    return world


def _add_places(
    world: World, countries: list[int], language_of: dict[int, int], num_cities: int
) -> dict[int, int]:
    """Add cities, which end alike in each country; return the country of each."""
    country_of: dict[int, int] = {}
    draw = Zipf(world.rng, countries)
    endings = {country: world.word(1, 1) for country in countries}
    for country, tongue in language_of.items():
        capital = world.add(world.word(1, 2) + endings[country])
        country_of[capital] = country
        world.state(country, "P36", capital)
        world.state(capital, "P1376", country, STATED)
        world.state(country, "P37", tongue)
    while len(country_of) < num_cities:
        country = draw.draw()
        country_of[world.add(world.word(1, 2) + endings[country])] = country
    for city, country in country_of.items():
        world.state(city, "P17", country)
    return country_of


def spell(word: Word, lang: str) -> str:
    """Return a word in the spelling of a language."""
    if lang == "ja":
        return "".join(KATAKANA[c][v] for c, v in word)
    if lang == "ko":
        return "".join(
            chr(0xAC00 + (HANGUL_INITIALS[c] * 21 + HANGUL_VOWELS[v]) * 28) for c, v in word
        )
    if lang == "th":
        return "".join(THAI_VOWELS[v].format(THAI_CONSONANTS[c]) for c, v in word)
    letters = ALPHABETS[lang].replace("-", "").split(" ")
    return "".join(letters[c] + letters[len(CONSONANTS) + v] for c, v in word).capitalize()


def make_entities(world: World, langs: Sequence[str], seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield properties and items as Wikidata writes them."""
    rng = random.Random(f"{seed} labels")
    for key, name in PROPERTIES.items():
        labels = {"en": {"language": "en", "value": name}}
        yield {"type": "property", "datatype": "wikibase-item", "id": key, "labels": labels}
    claims: dict[int, dict[str, list[Any]]] = {number: {} for number in range(len(world.names))}
    for subject, relation, object_ in world.facts:
        value = {"entity-type": "item", "numeric-id": object_ + 1, "id": f"Q{object_ + 1}"}
        statement = _statement(relation, "wikibase-entityid", value)
        claims[subject].setdefault(relation, []).append(statement)
    for number, words in enumerate(world.names):
        if number in world.people:
            day = f"+{rng.randint(1900, 1999)}-{rng.randint(1, 12):02}-01T00:00:00Z"
            claims[number]["P569"] = [_statement("P569", "time", {"time": day, "precision": 10})]
        names = {}
        for lang in langs:
            if rng.random() >= MISSING:
                names[lang] = " ".join(spell(word, lang) for word in words)
            if lang in names and number in world.translated:
                own = World(random.Random(f"{seed} {lang} {number}"))
                names[lang] = spell(own.word(2, 4), lang)
        labels = {lang: {"language": lang, "value": name} for lang, name in names.items()}
        yield {"type": "item", "id": f"Q{number + 1}", "labels": labels, "claims": claims[number]}


def _statement(relation: str, type_: str, value: dict[str, Any]) -> dict[str, Any]:
    snak = {"snaktype": "value", "property": relation, "datavalue": {"value": value, "type": type_}}
    return {"mainsnak": snak, "type": "statement", "rank": "normal"}


def write_dump(path: Path, num_facts: int, num_langs: int, seed: int = 0) -> int:
    """Write the dump, and return the number of items."""
    world = make_world(num_facts, seed)
    entities = make_entities(world, LANGUAGES[:num_langs], seed)
    lines = ",\n".join(json.dumps(entity, ensure_ascii=False) for entity in entities)
    path.write_text(f"[\n{lines}\n]\n", "utf-8")
    return len(world.names)


def measure_steps(command: Sequence[str], work: Path) -> Iterator[tuple[str, float, float]]:
    """Run a command, and yield name, seconds and peak MiB of each step when it ends.

    A step ends when `work.json` gives its seconds; they include what came before it, such as
    imports. What comes after the last one is "the rest".
    """
    process = psutil.Popen(command, stdout=2)  # its output goes to stderr, the table to stdout
    started, peak, done = time.perf_counter(), 0.0, set[str]()
    while True:
        is_over = process.poll() is not None
        peak = max(peak, _resident_mib(process))
        for name in _finished_steps(work):
            if name not in done:
                now = time.perf_counter()
                yield name, now - started, peak
                started, peak = now, 0.0
                done.add(name)
        if is_over:
            break
        time.sleep(0.1)
    yield "the rest", time.perf_counter() - started, peak
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))


def _finished_steps(work: Path) -> list[str]:
    """Return the steps of a work folder that have ended, in their order."""
    state = work / "work.json"
    return list(json.loads(state.read_text("utf-8")).get("seconds", {})) if state.exists() else []


def _resident_mib(process: psutil.Process) -> float:
    """Return the memory of a process and those that it started."""
    total = 0
    with suppress(psutil.Error):
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):
                total += one.memory_info().rss
    return total / 2**20


def run_enrich(args: argparse.Namespace) -> None:
    """Run the main command on a dump, and print a row for each step and for the whole."""
    options = ["--into", args.into, "--to", str(args.work), "--effort", args.effort]
    options += ["--minutes", str(args.minutes)] if args.minutes else []
    command = [sys.executable, "-m", "prixlm", "enrich", str(args.run), *options]
    print("| step | s | peak MiB |\n|---|---|---|", flush=True)
    total, highest = 0.0, 0.0
    for name, seconds, mib in measure_steps(command, args.work):
        print(f"| {name} | {seconds:,.1f} | {mib:,.0f} |", flush=True)
        total, highest = total + seconds, max(highest, mib)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"| **{args.effort}, all** | {total:,.1f} | {highest:,.0f} |\n")
    print(
        f"Processor time {used.ru_utime + used.ru_stime:,.0f} s on {os.cpu_count()} cores. "
        f"The largest process held {used.ru_maxrss / 2**10:,.0f} MiB."
    )


def main() -> None:
    """Write a dump, or run the main command on one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--facts", type=int, default=46_000, help="statements of the dump")
    parser.add_argument("--langs", type=int, default=20, choices=range(2, len(LANGUAGES) + 1))
    parser.add_argument("--to", type=Path, help="write a dump to this file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, help="enrich this dump")
    parser.add_argument("--into", default="et,te")
    parser.add_argument("--work", type=Path, default=Path("work"), help="a new folder")
    parser.add_argument("--effort", default="quick", choices=("quick", "standard", "thorough"))
    parser.add_argument("--minutes", type=int)
    args = parser.parse_args()
    if not args.to and not args.run:
        parser.error("nothing to do: pass --to FILE to write a dump, or --run FILE to enrich one.")
    if args.to:
        num_items = write_dump(args.to, args.facts, args.langs, args.seed)
        print(f"{num_items:,} items with {args.facts:,} statements in {args.to}")
    if args.run:
        if args.work.exists():
            parser.error(f"{args.work} exists: its steps would be found done. Remove it.")
        run_enrich(args)


if __name__ == "__main__":
    main()
