"""Conversations that a build refuses by name: judged answers, and context that a template leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chat import talks
from tests.chat.talks import PLAIN

import packline
from packline.errors import InputError


def test_conversations_whose_outputs_or_later_instructions_a_template_leaves_out_are_refused(
    chatml: Path, tmp_path: Path
) -> None:
    shows = (
        "{% for m in messages if m.role != 'ROLE' %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    )
    shows += "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>"
    shows += "{% endif %}{% endfor %}"
    records = [
        [PLAIN[0], {"role": "assistant", "content": "[f(1)]"}, {"role": "tool", "content": "a\nb"}, PLAIN[1]],
        [*PLAIN, {"role": "system", "content": "Be brief."}, *PLAIN],
    ]
    path = talks.write(tmp_path / "chat.jsonl", [PLAIN, *records, *records])
    for role, lost in (("nobody", 0), ("tool", 2), ("system", 2)):
        store = packline.sft(
            path, chatml, out=tmp_path / role, chat_template=shows.replace("ROLE", role), workers=0
        )
        assert store.manifest.ledger.rejected == ({"template": lost} if lost else {})
        assert store.manifest.documents == 5 - lost


def test_of_answers_that_are_judged_only_the_good_ones_are_trained_on(chatml: Path, tmp_path: Path) -> None:
    judged = [
        {
            "prompt": PLAIN[:1],
            "completion": [{"role": "assistant", "content": f"Answer {n}."}],
            "label": n < 2,
        }
        for n in range(5)
    ]
    path = talks.write(tmp_path / "judged.jsonl", judged)
    store = packline.sft(path, chatml, out=tmp_path / "store", workers=0)
    assert talks.trained_texts(store) == [["Answer 0.<|im_end|>"], ["Answer 1.<|im_end|>"]]
    assert store.manifest.ledger.rejected == {"preference_data": 3}
    pairs = talks.write(tmp_path / "pairs.jsonl", [{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with pytest.raises(InputError, match=r"preference data \(chosen, rejected\) .* DPOTrainer reads them"):
        packline.sft(pairs, chatml, out=tmp_path / "none", workers=0)
