# SPDX-License-Identifier: Apache-2.0
"""The page as text: what it holds, what it escapes."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from vllm_eagle_pangu.cli import main
from vllm_eagle_pangu.tracing.report.command import write_report
from vllm_eagle_pangu.tracing.report.token_texts import token_texts

from .test_report_runs import FIRST_ROOT, SMALL, write_manifest, write_run

pytest.importorskip("matplotlib", reason="the report's charts need matplotlib")

CHARTS = {
    "tau-distribution",
    "tau-by-request",
    "acceptance-by-position",
    "acceptance-by-rank",
    "calibration",
    "stages",
}
SMUGGLED = '</script><script>alert(1)</script><!--<img src=x onerror="alert(2)">&amp;'


class Elements(HTMLParser):
    """A page's elements, and what they could load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.loads: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.loads += [
            one for one in attrs if one[0].rpartition(":")[2] in ("src", "href", "srcset")
        ]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer of two tokens, the first root's text being markup."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    model = tokenizers.models.WordLevel({"a": 0, SMUGGLED: FIRST_ROOT}, unk_token="a")
    bare = tokenizers.Tokenizer(model)
    bare.decoder = tokenizers.decoders.Fuse()
    folder = tmp_path / "tokenizer"
    transformers.PreTrainedTokenizerFast(tokenizer_object=bare).save_pretrained(folder)
    return folder


def test_the_page_has_every_chart_inline_and_as_png_and_loads_nothing(tmp_path: Path):
    page = write_report(write_run(tmp_path / "run", SMALL))
    text = page.read_text(encoding="utf-8")

    assert page == tmp_path / "run" / "report" / "index.html"
    assert {path.stem for path in page.parent.glob("*.png")} == CHARTS
    elements = Elements(text)
    assert elements.names.count("svg") == len(CHARTS)
    # A chart repeats parts of its own.
    assert elements.loads and all(str(value).startswith("#") for _, value in elements.loads)
    assert "@import" not in text and "url(http" not in text
    assert "--compare" in text


def test_a_comparison_adds_its_chart(tmp_path: Path):
    run, bench = write_run(tmp_path / "run", SMALL, steps=2), tmp_path / "bench.json"
    bench.write_text('{"methods": [{"name": "$tree$", "tau": 4.6, "speedup": 1.65}]}')
    text = write_report(run, tmp_path / "out", compare=bench).read_text(encoding="utf-8")
    assert (tmp_path / "out" / "speedup-by-tau.png").is_file()
    assert "1  $tree$</td><td>4.60</td><td>1.65</td><td>2.79</td>" in text


def test_a_run_without_steps_says_so(tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    write_manifest(run, {"tree_width": 4})
    text = write_report(run).read_text(encoding="utf-8")
    assert "This run holds no steps" in text and "tree_width" in text
    assert "svg" not in Elements(text).names


@pytest.mark.parametrize("cut", [{"truncated": True}, {"lines_dropped": {"queue_full": 3}}])
def test_missing_steps_are_told(tmp_path: Path, cut):
    run = write_run(tmp_path / "run", SMALL, steps=2)
    told = "Steps are missing from every figure"
    assert told not in write_report(run).read_text(encoding="utf-8")
    (run / "manifest.json").write_text(json.dumps({"schema": 1, **cut}))
    assert told in write_report(run).read_text(encoding="utf-8")


def test_no_text_of_a_run_becomes_markup(tmp_path: Path, tokenizer: Path):
    plain = Elements(write_report(write_run(tmp_path / "plain", SMALL, ["a"])).read_text())

    run = write_run(tmp_path / "run", SMALL, [SMUGGLED])
    write_manifest(run, {SMUGGLED: SMUGGLED, "nested": {"key": [SMUGGLED]}})
    steps = (run / "steps.jsonl").read_text().replace('"draft_us"', json.dumps(f"{SMUGGLED}_us"))
    (run / "steps.jsonl").write_text(steps)
    bench = tmp_path / "bench.json"
    bench.write_text(json.dumps({"methods": [{"name": SMUGGLED, "tau": 2, "speedup": 1}]}))
    text = write_report(run, None, tokenizer, bench).read_text(encoding="utf-8")

    elements = Elements(text)
    assert elements.names.count("script") == plain.names.count("script") == 2
    assert "img" not in elements.names
    assert "<script>alert" not in text and "<!--" not in text
    data = json.loads(next(one for one in elements.texts if one.startswith('{"total"')))
    assert data["texts"][str(FIRST_ROOT)] == SMUGGLED and data["requests"] == [SMUGGLED]


def test_half_a_surrogate_pair_is_no_error(tmp_path: Path):
    run = write_run(tmp_path / "run", SMALL, ["\ud83d"], steps=1)
    write_manifest(run, {"note": "\ud83d"})
    assert write_report(run).read_text(encoding="utf-8").count("&#55357;") == 3


def test_a_token_keeps_its_leading_space_and_an_unknown_id_is_no_error():
    class Stripping:
        """As SentencePiece tokenizers do: the first token's space is dropped."""

        words = ("a", " b", "</s>")

        def encode(self, text, add_special_tokens):
            return [self.words.index(text)]

        def decode(self, tokens, **_):
            return "".join(self.words[token] for token in tokens).lstrip()

    assert token_texts(Stripping(), [1, 2, 9]) == {1: " b", 2: "</s>", 9: ""}


def test_what_cannot_be_read_ends_with_a_sentence(tmp_path: Path, capsys):
    run = write_run(tmp_path / "run", SMALL, steps=1)
    for options, words in (
        ([str(tmp_path / "none")], ["none", "manifest.json"]),
        ([str(run), "--tokenizer", str(tmp_path / "none")], ["tokenizer", "no such folder"]),
        ([str(run), "--tokenizer", str(run)], ["tokenizer", "no tokenizer there"]),
        ([str(run), "--compare", str(tmp_path / "none.json")], ["compare", "no such file"]),
        ([str(run), "--out", str(run / "manifest.json")], ["out", "pass another --out"]),
    ):
        assert main(["report", *options]) == 2
        error = capsys.readouterr().err
        assert error.startswith("eagle-pangu report: ") and all(word in error for word in words)
