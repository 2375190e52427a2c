"""Texts of the vocabulary room: those to train on, a user's sample, and passages written for comparing.

Each passage is about a page long, so results describe a kind of text, not a corpus: news, Korean, code,
mathematics, science. For the text that a model will be trained on, add a file of that text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from packline.errors import InputError, RecipeError
from packline.fingerprint import Hasher, splits_of
from packline.jobs.text_unit import KEEP, judge_text
from packline.recipe import Recipe, Source
from packline.sources.batch import Texts
from packline.sources.fields import find_files
from packline.sources.files import TEXT_FIELDS, InputFile
from packline.sources.reader import Span, read_span

TEXT_BYTES = 4 << 20
"""Size of the sample, in bytes."""

NEWS = """\
HARBOUR TOWN, 14 March - The city council voted 9 to 4 on Tuesday evening to rebuild the old ferry terminal, \
ending a dispute that had divided residents for the better part of six years. The project, expected to cost \
$48.5 million, will replace the 1937 building's failing piers, widen the public walkway along the water, and \
add a covered market with room for some sixty stalls.

"We have studied this question long enough," said the council's chair after the vote. "Every winter that we \
wait, the repairs get dearer and the building gets sadder." Opponents, who had filled the gallery with \
yellow signs, argued that the money should go to the schools first; two of them were escorted out when \
they refused to stop singing.

Construction is to begin in early September and should last until the spring of the year after next. During \
that time the ferries will leave from a temporary dock at the foot of Mill Street, about 400 metres to the \
north. Commuters were told to expect delays of five to ten minutes, "perhaps fifteen in bad weather," \
according to a spokesperson for the port.

Shopkeepers nearby were of two minds. "It'll be noisy, and we'll lose the summer," said the owner of a \
bakery across the square, who hasn't decided whether to stay. "But I've been looking at that \
scaffolding since my daughter was born, and she's in the fourth grade now." The final design will be on \
display in the town hall from Monday to Friday, 9 a.m. to 6:30 p.m., until the end of April.
"""

KOREAN = """\
봄이 오면 마을 사람들은 강가에 모여 작은 잔치를 열었다. 아이들은 종이배를 접어 물 위에 띄웠고, 어른들은 나무 \
그늘에 자리를 펴고 앉아 지난겨울에 있었던 일을 이야기했다. 올해는 눈이 유난히 많이 내려서 산길이 두 번이나 \
막혔지만, 서로 도와 길을 치운 덕분에 큰 어려움은 없었다고 했다.

할머니는 아침 일찍 일어나 쑥을 뜯어 떡을 만드셨다. "떡은 식기 전에 먹어야 제맛이지." 하시며 웃으셨지만, 정작 \
당신은 한 조각도 드시지 않고 이웃에게 모두 나누어 주셨다. 나는 그 모습을 보며 나중에 어른이 되면 나도 저렇게 \
살 수 있을까 하고 생각했다.

해가 질 무렵에는 누군가 북을 치기 시작했다. 처음에는 느리던 가락이 점점 빨라지자 사람들은 하나둘 일어나 춤을 \
추었다. 서울에서 온 사촌은 부끄럽다며 뒤로 숨었으나, 결국 동생의 손에 이끌려 가운데로 나왔다. 그날 찍은 사진 \
12장은 지금도 우리 집 벽에 걸려 있다.

밤이 깊어 집으로 돌아오는 길에는 개구리 우는 소리가 들렸다. 아버지는 내일 비가 올 것 같다고 하셨고, 어머니는 \
빨래를 걷어야 한다며 걸음을 재촉하셨다. 나는 맨 뒤에서 천천히 걸으며 별을 세었다. 서른일곱까지 세다가 졸음이 \
와서 그만두었다.
"""

CODE = '''\
import heapq
from collections import defaultdict


class Graph:
    """A directed graph whose edges have lengths."""

    def __init__(self):
        self._edges = defaultdict(list)  # node -> [(neighbour, length), ...]

    def add_edge(self, start, end, length=1.0, both_ways=False):
        if length < 0:
            raise ValueError(f"length is {length}: expected 0 or more")
        self._edges[start].append((end, length))
        if both_ways:
            self._edges[end].append((start, length))

    def shortest_path(self, start, goal):
        """Return (distance, [nodes]) or None where no way leads there."""
        queue, seen = [(0.0, start, None)], {}
        while queue:
            distance, node, came_from = heapq.heappop(queue)
            if node in seen:
                continue
            seen[node] = came_from
            if node == goal:
                path = [node]
                while seen[path[-1]] is not None:
                    path.append(seen[path[-1]])
                return distance, path[::-1]
            for neighbour, length in self._edges[node]:
                if neighbour not in seen:
                    heapq.heappush(queue, (distance + length, neighbour, node))
        return None


if __name__ == "__main__":
    graph = Graph()
    for a, b, km in [("A", "B", 4.2), ("B", "C", 1), ("A", "C", 7.75)]:
        graph.add_edge(a, b, km, both_ways=True)
    assert graph.shortest_path("A", "C") == (5.2, ["A", "B", "C"])
    print("ok" if graph.shortest_path("A", "Z") is None else "??")
'''

MATHEMATICS = r"""\documentclass{article}
\begin{document}
\section{A series and its limit}

Let $(a_n)_{n \ge 1}$ be a sequence of positive real numbers with $a_{n+1} \le q\,a_n$ for some $0 < q < 1$
and all $n$. By induction $a_n \le a_1 q^{n-1}$, and therefore
\begin{equation}\label{eq:bound}
  \sum_{n=1}^{N} a_n \;\le\; a_1 \sum_{n=0}^{N-1} q^n \;=\; a_1 \cdot \frac{1 - q^{N}}{1 - q}
  \;<\; \frac{a_1}{1-q}.
\end{equation}
The partial sums increase and are bounded by \eqref{eq:bound}, so the series converges.

\paragraph{How good is the bound?} Take $a_n = 2^{-n}$, that is $q = \tfrac12$ and $a_1 = \tfrac12$. Then the
sum is exactly $1 = a_1/(1-q)$, and the bound cannot be improved. For $a_n = 1/n!$ we may use $q = \tfrac12$
from $n = 1$ on, which gives
\[
  e - 1 = \sum_{n=1}^{\infty} \frac{1}{n!} \le 2, \qquad\text{while in truth } e - 1 \approx 1.7182818284590.
\]

\paragraph{Exercise.} Show that $\int_0^\infty x^{k} e^{-x}\,dx = k!$ for every $k \in \mathbb{N}_0$. Hint:
integrate by parts, $\int u\,dv = uv - \int v\,du$, with $u = x^k$ and $dv = e^{-x}dx$. Conclude that
$\Gamma(\alpha + 1) = \alpha\,\Gamma(\alpha)$ for all $\alpha > 0$, and that $\Gamma(\frac12) = \sqrt{\pi}$
implies $\Gamma(\frac52) = \frac{3}{4}\sqrt{\pi} \approx 1.32934$.
\end{document}
"""

SCIENCE = """\
Photosynthesis turns the energy of light into the energy of chemical bonds. In plants it takes place in the \
chloroplasts, whose inner membranes, the thylakoids, hold two pigment-protein complexes known as photosystem \
II and photosystem I. When chlorophyll absorbs a photon of a wavelength near 680 nm, an electron is \
lifted to a higher level and handed along a chain of carriers (plastoquinone, the cytochrome b6f \
complex, plastocyanin); water gives the replacement, and so oxygen is set free: 2 H2O -> O2 + 4 H+ + 4 e-.

The protons that gather inside the thylakoid flow back through ATP synthase, a rotating enzyme which makes \
about three molecules of ATP for every fourteen protons. ATP and NADPH then drive the Calvin-Benson cycle in \
the stroma, where the enzyme RuBisCO attaches carbon dioxide to ribulose-1,5-bisphosphate. Per molecule of \
glucose the cycle spends 18 ATP and 12 NADPH.

RuBisCO is slow, with 3 to 10 turnovers a second, and it also accepts O2 by mistake. This photorespiration \
costs C3 plants up to a quarter of the carbon they have fixed, more at temperatures above 30 \u00b0C. \
Maize and sugar cane avoid most of it: they concentrate CO2 in bundle-sheath cells by way of a \
four-carbon acid, malate. Cacti open their stomata only at night (crassulacean acid metabolism), when \
evaporation is lowest. Measured at the leaf, the efficiency of the whole process seldom exceeds 4.6% in \
C3 plants and 6% in C4 plants.
"""

PASSAGES: dict[str, str] = {
    "news": NEWS,
    "korean": KOREAN,
    "code": CODE,
    "mathematics": MATHEMATICS,
    "science": SCIENCE,
}

LANGUAGES: dict[str, str] = {
    "English": (
        "Every morning the children walk to school together. In winter it is still dark when they leave."
    ),
    "German": (
        "Jeden Morgen gehen die Kinder zusammen zur Schule. "
        "Im Winter ist es noch dunkel, wenn sie aufbrechen."
    ),
    "French": (
        "Chaque matin, les enfants vont ensemble à l’école. En hiver, il fait encore nuit quand ils partent."
    ),
    "Spanish": (
        "Cada mañana los niños caminan juntos a la escuela. En invierno todavía está oscuro cuando salen."
    ),
    "Russian": "Каждое утро дети вместе идут в школу. Зимой ещё темно, когда они выходят.",
    "Turkish": "Çocuklar her sabah birlikte okula yürür. Kışın yola çıktıklarında hava hâlâ karanlıktır.",
    "Arabic": "كل صباح يمشي الأطفال معًا إلى المدرسة. في الشتاء يكون الظلام لا يزال قائمًا عندما يخرجون.",
    "Hindi": "हर सुबह बच्चे साथ में स्कूल जाते हैं। सर्दियों में जब वे निकलते हैं तब भी अँधेरा होता है।",
    "Chinese": "每天早上，孩子们一起走路去上学。冬天他们出门的时候，天还是黑的。",
    "Japanese": "毎朝、子どもたちは一緒に歩いて学校へ行きます。冬は、家を出るときまだ外が暗いです。",
    "Korean": "매일 아침 아이들은 함께 걸어서 학교에 간다. 겨울에는 집을 나설 때 아직 어둡다.",
}
"""The same two sentences in several languages, for comparing token counts across languages."""


@dataclass
class TrainingTexts:
    """Texts of the training split of a build of the same sources, within limits; can be iterated once.

        files ── batches ── template, filters ── split train ── cut at doc_chars ── the first max_chars

    Documents that a recipe reserves for validation and testing are not used. Files are read in the order of
    the recipe, so a limit keeps the beginning: put important files first, or shuffle the folder. Unreadable
    records are skipped and counted by reason. Weights of sources are ignored.

    Counts are complete after all texts have been read.
    """

    recipe: Recipe
    max_chars: int | None = None
    """Limit for all documents together."""
    doc_chars: int | None = None
    """Limit per document; the rest of it is not used."""
    files: list[InputFile] = field(default_factory=list)
    documents: int = 0
    characters: int = 0
    cut_documents: int = 0
    """Number of documents longer than `doc_chars`."""
    left_out: int = 0
    """Number of documents removed by the filters of their source."""
    held_out: int = 0
    """Number of documents that the recipe reserves for validation and testing."""
    bad_records: Counter[str] = field(default_factory=Counter)
    """Number of bad records by reason."""
    stopped_early: bool = False
    """True if `max_chars` was reached."""

    def __post_init__(self) -> None:
        for name in ("max_chars", "doc_chars"):
            limit: int | None = getattr(self, name)
            if limit is not None and limit < 1:
                raise RecipeError(f"{name} is {limit}: expected at least 1")
        if self.recipe.val_documents:
            raise RecipeError(
                "a tokenizer cannot be trained by a recipe with val_documents: which documents they are is "
                "known to a build only",
                hint="use val_fraction in the recipe, or name the inputs instead",
            )
        self.files = find_files(self.recipe)

    def batches(self) -> Iterator[Texts]:
        """Iterate over the texts in batches."""
        room = self.recipe.limit_documents
        for file in self.files:
            source = self.recipe.sources[file.source]
            span = Span(file.index, 0, _end_of(file))
            for batch in read_span(file, source, span, self.recipe.max_document_bytes, Hasher()):
                for reject in batch.rejects:
                    if not reject.continued:
                        self.bad_records[reject.reason] += reject.records
                self.left_out += len(batch.filtered)
                texts = self._filtered(batch.texts, source)
                if room is not None:
                    texts = texts.take(np.arange(min(len(texts), room)))
                    room -= len(texts)
                texts = self._limited(self._to_train(texts, source))
                if len(texts):
                    yield texts
                if self.stopped_early or room == 0:
                    return

    def _filtered(self, texts: Texts, source: Source) -> Texts:
        """Apply filters as a build does; this also removes empty documents."""
        kept = judge_text(texts, source) == KEEP
        if kept.all():
            return texts
        self.left_out += int(np.count_nonzero(~kept))
        return texts.take(np.flatnonzero(kept))

    def _to_train(self, texts: Texts, source: Source) -> Texts:
        val_share, test_share = self.recipe.val_fraction, self.recipe.test_fraction or 0.0
        if source.split:
            kept = np.full(len(texts), source.split == "train")
        elif val_share or test_share:
            splits = splits_of(texts.hashes(self.recipe.seed), val_share, test_share)
            kept = splits == "train"
        else:
            return texts
        self.held_out += int(np.count_nonzero(~kept))
        return texts.take(np.flatnonzero(kept))

    def _limited(self, texts: Texts) -> Texts:
        characters = texts.characters()
        long = np.zeros(len(texts), np.bool_)
        if self.doc_chars is not None and (long := characters > self.doc_chars).any():
            texts = Texts(pc.utf8_slice_codeunits(texts.array, 0, self.doc_chars))
            characters = np.minimum(characters, self.doc_chars)
        if self.max_chars is not None:
            ends = self.characters + np.cumsum(characters)
            whole = int(np.searchsorted(ends, self.max_chars, side="right"))
            if whole < len(texts):
                self.stopped_early = True
                rest = self.max_chars - (int(ends[whole - 1]) if whole else self.characters)
                taken = texts.take(np.arange(whole + (rest > 0))).to_list()
                if rest > 0:
                    taken[-1] = taken[-1][:rest]
                texts, characters = Texts.of(taken), np.append(characters[:whole], [rest] if rest else [])
        self.cut_documents += int(np.count_nonzero(long[: len(texts)]))
        self.documents += len(texts)
        self.characters += int(characters.sum())
        return texts


def _end_of(file: InputFile) -> int:
    if file.format != "parquet":
        return file.size
    from packline.sources.parquet import group_count

    return group_count(file)


def read_text(path: str) -> str:
    """Read the beginning of a plain file, or of the documents of other files, joined by line ends.

    Raw JSON lines would measure quotes and escapes instead of text. Records that cannot be read are not
    counted.
    """
    if Path(path).exists():
        texts = _documents(path)
        if Path(path).is_dir() or any(file.format != "text" or file.compression for file in texts.files):
            whole = "\n".join(text for batch in texts.batches() for text in batch)
            if not whole:
                raise InputError(f"{path} has no text: expected documents to compare on")
            return whole.encode("utf-8")[:TEXT_BYTES].decode("utf-8", "ignore")
    try:
        with Path(path).open("rb") as file:
            data = file.read(TEXT_BYTES)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(data) < TEXT_BYTES or error.start < len(data) - 3:
            raise InputError(f"{path} is not UTF-8 at byte {error.start}") from error
        text = data[: error.start].decode("utf-8")
    if not text:
        raise InputError(f"{path} is empty: expected text to compare on")
    return text


def _documents(path: str) -> TrainingTexts:
    try:
        return TrainingTexts(Recipe(sources=(Source(inputs=(path,)),), tokenizer=""), max_chars=TEXT_BYTES)
    except InputError as error:  # its hint names an option of `build`
        fields = ", ".join(TEXT_FIELDS)
        raise InputError(str(error), hint=f"of records, text is the first field of {fields}") from error
