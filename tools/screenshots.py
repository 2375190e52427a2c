"""Take pictures of every page of the viewer, in nine scripts and more, and judge them.

    texts of 13 scripts ──> a store with columns, conversations, a run ──> packline serve ──> PNG, axe, widths

Every page is opened in both schemes at 400 and 1,280 pixels. The pictures go to `build/screenshots`, to be
looked at; what axe-core finds, of any impact, and what reaches beyond the window is printed, and the exit
code is then 1. Needs Chromium and fonts, which `make browser` installs. Takes some minutes.

    python -m tools.screenshots
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from tests.viewing.browser.harness import SCHEMES, Chrome, axe, fits, picture, serving, started

import packline
from packline.vocabulary.training import train_bpe

WORK = Path(__file__).resolve().parents[1] / "build" / "screenshots-work"
WIDTHS = (400, 1280)
EOD = "<|endoftext|>"
CONTROL = (EOD, "<|im_start|>", "<|im_end|>")
TEXTS = {
    "latin": "All human beings are born free and equal; naïve café, Łódź, ½ €.",
    "cyrillic": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.",
    "han": "北京欢迎你。人人生而自由，在尊严和权利上一律平等。",
    "kana": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "hangul": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "devanagari": "दुख और सुख। सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता प्राप्त है।",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "thai": "สวัสดีครับ มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "arabic": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. packline 123 عالم.",
    "hebrew": "כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "emoji": "👩‍👩‍👧‍👦 👍🏽 🇯🇵 🎉 ❤️ a family, a skin tone, a flag",
}
TALK = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "यह क्या है? 这是什么？"},
    {"role": "assistant", "content": "दुख। 一只猫。 قطة"},
    {"role": "user", "content": "And in Thai?"},
    {"role": "assistant", "content": "แมว"},
]
RUN = """[loader]
batch_size = 4

[[stages]]
seq_len = 128
tokens = 4_096
[[stages.sources]]
store = "store"
where = "score >= 2"
weight = 0.7
max_epochs = 9
[[stages.sources]]
store = "store"
where = "score < 2"
weight = 0.3
max_epochs = 9

[[stages]]
seq_len = 256
packing = "best_fit"
tokens = 4_096
[[stages.sources]]
store = "store"
max_epochs = 9
"""
PAGES = (
    "/",
    "/documents",
    "/documents?where=score+%3E%3D+2&sort=tokens&desc=1",
    *(f"/document/{place}" for place in range(len(TEXTS))),
    "/rows?seq_len=128",
    "/row/0?seq_len=512&packing=best_fit",
    "/batch?seq_len=128&batch_size=4",
    "/run?step=3",
    "/run?step=3&row=1",
    "/search?q=" + "%E4%BA%BA",
    "/search?q=zzzz",
    "/compare/tokenizers",
    "/compare/tokenizers?document=3",
    "/document/0?store=1",
    "/document/99999",
    "/nowhere",
)


def prepare() -> None:
    """Two stores, two tokenizers and a run."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    texts = list(TEXTS.values())
    records = [
        {"text": "\n".join([text] * 3), "id": name, "score": place / 3, "script": name}
        for place, (name, text) in enumerate(TEXTS.items())
    ]
    records += [
        {
            "text": texts[place % 13],
            "id": f"{place}",
            "score": place % 7 / 2,
            "script": list(TEXTS)[place % 13],
        }
        for place in range(200)
    ]
    lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records)
    (WORK / "texts.jsonl").write_text(lines, "utf-8")
    (WORK / "chats.jsonl").write_text(json.dumps({"messages": TALK}) + "\n", "utf-8")
    for name, size in (("small", 600), ("large", 1200)):
        (WORK / f"{name}.json").write_text(train_bpe(iter(texts * 4), size, CONTROL), "utf-8")
    packline.build(
        WORK / "texts.jsonl",
        WORK / "small.json",
        out=WORK / "store",
        columns=["score: float", "script"],
        eod=EOD,
        workers=0,
    )
    packline.sft(
        WORK / "chats.jsonl",
        WORK / "small.json",
        out=WORK / "chats",
        chat_template="chatml",
        eod=EOD,
        workers=0,
    )
    (WORK / "run.toml").write_text(RUN, "utf-8")


def judged(chrome: Chrome, site: str) -> Iterator[str]:
    """Take all pictures; yield what is wrong."""
    for path, width, scheme in product(PAGES, WIDTHS, SCHEMES):
        page = chrome.open(site + path, width=width, scheme=scheme)
        name = re.sub(r"\W+", "-", path).strip("-") or "overview"
        picture(page, f"{name}-{width}-{scheme}")
        wrong = [*axe(page, impacts=None), *([wide] if (wide := fits(page)) else [])]
        yield from (f"{path} at {width}, {scheme}: {one}" for one in wrong)
        yield from chrome.close()


def main() -> None:
    """Make everything, take the pictures, print what is wrong."""
    prepare()
    with (
        started() as browser,
        serving("store", "chats", "run.toml", "--tokenizer", "large.json", cwd=WORK) as site,
    ):
        found = list(judged(Chrome(browser), site))
    print("\n".join(found) or f"{len(PAGES) * 4} pictures, nothing wrong")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
