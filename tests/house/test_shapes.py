"""The shapes that annotations name are those that are there: every call is checked, in these files.

A check takes as long as what it checks. So it is made once, over tests that reach every annotated
function, in a process of its own, and not in every test of the suite.
"""

import re
from pathlib import Path

import pytest

from tests.support.forked import BEFORE, Forked

ROOT = Path(__file__).resolve().parents[2]
# Those that name a shape; to bind each call of the others takes as long as the checks.
NAMING = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in sorted((ROOT / "layerlab").rglob("[a-z]*.py"))
    if re.search(
        r"^from (jaxtyping|layerlab\.shapes) import", file.read_text("utf-8"), re.MULTILINE
    )
]
CHECKED = f"--jaxtyping-packages={','.join(NAMING)},beartype.beartype"
FEW = "--hypothesis-profile=few"
# Plugins of pytest whose modules are there when it starts.
THERE = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
PLACES = [
    *(f"tests/measures/{name}" for name in ("quantities", "support", "test_drilldown.py")),
    "tests/observe",
    "tests/blocks",
    *(
        f"tests/numerics/theory/test_{name}.py"
        for name in ("activations", "condition_numbers", "error_bounds")
    ),
    "tests/numerics/emulation/test_inner_roundings.py",
    "tests/studies/budzinskiy25/support/test_scalar_arithmetic.py",
    "tests/model/test_laws.py::test_every_law_that_a_user_can_check_holds",
    "tests/corpus/test_batches.py",
    "tests/training/qk_control/test_penalties.py",
    "tests/adaptation/trainer/test_bits_per_byte.py",
    "tests/adaptation/embeddings/test_resize.py",
]
# They call no function with other kinds of tensors than the rest does, and take the longest.
REPEATING = {
    "adaptation/trainer/test_bits_per_byte.py": [
        "costs_are_those_of_a_literal_computation",
        "each_byte_counts_once_whatever_its_tokens",
    ],
    "adaptation/embeddings/test_resize.py": [
        "a_resized_model_is_saved_and_loaded",
        "any_pruning_is_a_choice_of_columns",
        "logits_of_old_tokens_are_the_same_bits",
    ],
    "blocks/test_dropout.py": ["mixing_is_a_bijection_that_spreads_each_bit"],
    "blocks/test_position.py": ["derivatives_are_those_of_finite_differences"],
    "blocks/operations/test_stream_mixing.py": [
        "a_model_with_lookups_learns_as_one_without",
        "the_gradient_of_a_normed_product_is_the_true_one",
    ],
    "measures/quantities/test_attention.py": ["readings_are_those_of_a_literal_transcription"],
    "measures/support/test_pca.py": [
        "scikit_learn_finds_the_same_up_to_sign",
        "the_same_cloud_gives_the_same_picture_wherever_it_lies",
    ],
    "measures/quantities/low_precision/test_condition.py": [
        "every_part_of_a_llama_is_recognized_and_none_is_refused"
    ],
    "measures/quantities/test_dimension.py": [
        "effective_dimension_agrees_with_scikit_dimension",
        "effective_dimension_is_the_literal_minimum",
        "stable_rank_agrees_with_weightwatcher_whose_spectral_norm_is_squared",
    ],
    "measures/quantities/test_features.py": [
        "every_layer_is_that_of_scikit_learn_without_the_first_tokens",
    ],
    "measures/quantities/test_gain.py": [
        "bounds_hold_on_real_models_of_any_weight_scale",
        "contraction_is_the_norm_of_the_centred_attention",
        "rounding_of_nearly_equal_tokens_is_no_violation",
    ],
    "measures/support/test_lanczos.py": [
        "contraction_is_the_norm_of_the_centred_matrix",
        "norm_is_the_largest_singular_value_and_lies_in_its_enclosure",
    ],
    "blocks/operations/test_derivative.py": [
        "each_input_may_be_the_only_one_with_a_gradient",
    ],
    "measures/quantities/low_precision/test_gap.py": ["rows_are_those_of_the_function"],
    "measures/quantities/test_theorems.py": [
        "the_first_tokens_and_a_noise_are_as_they_are_asked_for",
    ],
    "observe/tracing/test_compiled.py": ["a_compiled_model_reads_as_it_does_uncompiled"],
    "measures/quantities/test_lipschitz.py": [
        "a_norm_beside_which_others_lie_is_not_missed",
        "local_is_the_largest_singular_value_of_the_full_jacobian",
        "value_is_a_lower_bound_and_never_falls_with_more_steps",
        "value_is_exact_once_the_krylov_space_is_exhausted",
    ],
    "observe/tracing/test_gradients.py": [
        "a_block_computed_twice_gives_the_same_gradients",
        "no_more_than_token_x_width_is_kept_of_a_layer",
    ],
    "measures/quantities/test_saliency.py": [
        "captum_says_the_same_at_every_layer",
        "every_reduction_is_that_of_central_differences",
    ],
    "measures/quantities/test_spectrum.py": [
        "bounds_hold_in_their_order_on_random_attention",
        "contraction_does_not_rest_on_a_smaller_singular_value",
        "float32_keeps_six_digits_at_2048_tokens",
        "norms_are_those_of_the_svd_in_every_regime",
        "streaming_reads_what_kept_tiles_read",
    ],
    "numerics/theory/test_error_bounds.py": [
        "an_error_of_the_input_is_carried_through",
        "no_choice_of_roundings_is_worse_at_few_digits",
        "no_computed_result_is_further_off",
    ],
    "numerics/theory/test_activations.py": [
        "conditions_stay_below_their_limits_and_grow_with_them",
    ],
    "numerics/emulation/test_inner_roundings.py": [
        "products_by_group_are_refused_for_mixed_dtypes_alone"
    ],
    "studies/budzinskiy25/support/test_scalar_arithmetic.py": [
        "a_block_is_what_exact_fractions_rounded_one_by_one_give",
    ],
    "training/qk_control/test_penalties.py": [
        "the_condition_penalty_makes_the_condition_smaller",
        "the_spectral_penalty_makes_the_norm_smaller",
        "two_processes_stay_alike",
    ],
}
WRONG = """
import torch
from layerlab.measures.quantities.diversity import diversity

def test_a_vector_is_no_matrix():
    diversity(torch.ones(3))
"""


@pytest.mark.full
def test_shapes_are_as_annotated_and_another_one_is_found(tmp_path):
    wrong = tmp_path / "test_wrong.py"
    wrong.write_text(WRONG)
    left_out = [f"tests/{file}::test_{name}" for file, names in REPEATING.items() for name in names]
    options = ["-q", "-rf", "-n", "0", "-p", "no:cacheprovider", "-W", THERE, FEW, CHECKED]
    for one in left_out:
        options += ["--deselect", one]
    started = Forked("-m", "pytest", *options, *PLACES, wrong, cwd=ROOT, server=BEFORE)
    done = started.wait(900.0)
    failed = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    assert [one.rpartition("::")[2] for one in failed] == ["test_a_vector_is_no_matrix"], (
        done.stdout[-4000:] + done.stderr[-2000:]
    )
    assert done.returncode == 1 and "TypeCheckError" in done.stdout
    assert re.search(r"^1 failed, \d{3,} passed", done.stdout.splitlines()[-1])
