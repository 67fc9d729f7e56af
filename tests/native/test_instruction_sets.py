"""Which instruction sets the kernels use, and that those for other processors compute the same."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial

import pytest

from fledge.base.errors import EngineError
from fledge.native import build
from tests.native import test_codes as codes
from tests.native import test_native_decoder as decoder
from tests.native import test_native_head as head
from tests.native import test_screen as screen

AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
BF16 = AVX512 | {"avx512_bf16", "avx512_vnni"}

CHECKS: dict[str, Callable[[], None]] = {
    "a decoder agrees with torch": partial(
        decoder.test_logits_features_and_hidden_agree_with_torch_in_float32, decoder.GEMMA3, 300
    ),
    "wide heads": partial(
        decoder.test_logits_features_and_hidden_agree_with_torch_in_float32,
        {"num_heads": 4, "num_kv_heads": 2, "head_dim": 256},
        33,
    ),
    "a tree is plain decode": partial(
        decoder.test_tree_nodes_get_bit_for_bit_what_plain_decode_gives, 508, decoder.WINDOWED
    ),
    "a row is on its own": partial(decoder.test_a_row_does_not_depend_on_the_rows_beside_it, {}),
    **{
        f"{name}: {what}": partial(check, f)
        for name, f in codes.FORMATS.items()
        for what, check in (
            ("a row's products are its own", codes.test_a_row_has_the_same_product_whatever_is_beside_it),
            ("products", codes.test_products_with_rows_that_eight_bits_hold_are_exact),
            ("rows", codes.test_rows_are_read_back),
        )
    },
    "a head agrees with torch": partial(
        head.test_extend_and_draft_steps_agree_with_torch, (True, True), True, 0.06
    ),
    "races agree with torch": head.test_races_agree_with_torch,
    "screened draws": partial(screen.test_a_draw_is_that_of_all_logits, screen.VOCABULARY, 0.3),
    "filtered rows": partial(screen.test_filtered_rows_beside_others, 16, True),
    "no number": screen.test_a_row_that_is_no_number_gets_token_0_and_the_others_theirs,
}


@pytest.mark.kernels
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("isa", ["avx2", pytest.param("avx512", marks=pytest.mark.slow)])
def test_the_kernels_for_other_processors(monkeypatch: pytest.MonkeyPatch, isa: str, check: str) -> None:
    if isa not in build.available_isas():
        pytest.skip(f"this processor has no {isa}")
    monkeypatch.setenv("FLEDGE_ISA", isa)
    CHECKS[check]()


def on(monkeypatch: pytest.MonkeyPatch, machine: str, flags: frozenset[str], system: str = "Linux") -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(build, "cpu_flags", lambda: flags)
    monkeypatch.delenv("FLEDGE_ISA", raising=False)


@pytest.mark.parametrize(
    ("machine", "flags", "isas"),
    [
        ("x86_64", BF16 | {"amx_tile", "amx_bf16", "amx_int8"}, ["amx", "avx512bf16", "avx512", "avx2"]),
        ("x86_64", BF16, ["avx512bf16", "avx512", "avx2"]),
        ("x86_64", AVX512, ["avx512", "avx2"]),
        ("x86_64", AVX2 | {"avx_vnni"}, ["avxvnni", "avx2"]),
        ("x86_64", AVX2, ["avx2"]),
        ("aarch64", frozenset({"fp", "asimd"}), ["neon"]),
        ("aarch64", frozenset({"fp", "asimd", "asimddp"}), ["dotprod", "neon"]),
    ],
)
def test_the_fastest_one_is_taken_and_others_by_name(
    monkeypatch: pytest.MonkeyPatch, machine: str, flags: frozenset[str], isas: list[str]
) -> None:
    on(monkeypatch, machine, flags)
    assert build.unfit_machine() == ""
    assert build.isa() == isas[0]
    for name in isas:
        monkeypatch.setenv("FLEDGE_ISA", name)
        assert build.isa() == name
        assert build.instruction_set() == build.INSTRUCTION_SETS[name].title


@pytest.mark.parametrize("wanted", ["amx", "neon", "avx512bf16", "sse4", "AVX2"])
def test_one_that_is_unknown_or_not_there_is_an_error_that_names_those_that_are(
    monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    on(monkeypatch, "x86_64", AVX512)
    monkeypatch.setenv("FLEDGE_ISA", wanted)
    for asked in (build.unavailable_reason, build.instruction_set):
        with pytest.raises(EngineError, match=f"FLEDGE_ISA is '{wanted}'; this machine has avx512, avx2$"):
            asked()


@pytest.mark.parametrize(
    ("system", "machine", "flags", "reason"),
    [
        ("Linux", "x86_64", frozenset({"sse4_2", "avx"}), "this processor lacks avx2, f16c, fma"),
        ("Linux", "x86_64", frozenset({"avx2"}), "this processor lacks f16c, fma"),
        ("Linux", "riscv64", frozenset(), "they need Linux on x86-64 or arm64, this is Linux on riscv64"),
        ("Darwin", "arm64", frozenset(), "they need Linux on x86-64 or arm64, this is Darwin on arm64"),
    ],
)
def test_a_machine_that_has_none_is_told_why(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, flags: frozenset[str], reason: str
) -> None:
    on(monkeypatch, machine, flags, system)
    assert build.unavailable_reason() == build.unfit_machine() == reason
