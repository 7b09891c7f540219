"""The kind of map that the command line, the report of a run and the explorer draw unless another is named."""

# Of all methods of one backward pass, it is the best on photographs (benchmarks/results/explanations.md): above every
# control in each training and on the packaged model. token_drop and occlusion score higher, but need a pass for each
# patch, some 20 times as long. explain() in Python computes "rollout" unless it is told otherwise, because its callers
# rely on it.
DEFAULT_METHOD = "gradient_rollout"

NOT_MEASURED = (
    "These maps were not measured on this model. On small models of CIFAR-10, token_drop shows best what a prediction "
    f"rests on, and {DEFAULT_METHOD} of the maps of one backward pass."
)
