"""Ablations: variants of a recipe trained with paired seeds, one table and one figure for all of them.

    folder = Path("runs/ablate")
    found = variants("scalerl", VariantRequest(leave_one_out=True), ["steps=200"])
    execute(folder, plan("scalerl", found, seeds=(0, 1, 2)), view, jobs=2)
    write_report(collect(folder))

Every variant of a seed starts from the same model and sees the same problems in the same order; differences to the base
are taken seed by seed. Each run has its own run folder, which all other commands read.
"""
