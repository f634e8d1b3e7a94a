# SPDX-License-Identifier: Apache-2.0
"""Whether the user of an `EngineArgs` chose our method, by whichever of vLLM's spellings."""

from typing import Any

from vllm_eagle_pangu.config import METHOD, refusal

# EngineArgs' flat spellings of the three keys (`spec_model=...`, `--spec-model ...`).
FLAT_KEYS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}


def chosen_spec(engine_args: Any) -> dict[str, Any] | None:
    """The user's whole `speculative_config` if its method is ours, else None.

    Keys are spelled with underscores; the flat flags are merged in. Changes nothing.
    """
    spec = engine_args.speculative_config
    if not (spec is None or isinstance(spec, dict)):
        return None
    merged = {str(key).replace("-", "_"): value for key, value in (spec or {}).items()}
    flat = {key: getattr(engine_args, flag, None) for flag, key in FLAT_KEYS.items()}
    if METHOD not in (merged.get("method"), flat["method"]):
        return None
    for flag, key in FLAT_KEYS.items():
        if flat[key] is None:
            continue
        if key in merged:
            raise refusal(
                f"--{flag.replace('_', '-')}",
                flat[key],
                f"speculative_config says {key}={merged[key]!r} too",
                "keep one of the two",
            )
        merged[key] = flat[key]
    return merged
