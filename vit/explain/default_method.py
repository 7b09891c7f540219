"""The kind of map that the command line, the report of a run and the explorer draw unless another is named."""

# Of the methods of one backward pass, it is the best on photographs in each of three trainings, and above every control
# (benchmarks/results/explanations.md). On the packaged model it is above every control where tokens are dropped, but
# attnlrp and gradcam are better there. token_drop and occlusion score higher, but need a pass for each patch, some 20
# times as long. explain() in Python computes "rollout" unless it is told otherwise, because its callers rely on it.
DEFAULT_METHOD = "gradient_rollout"

NOT_MEASURED = (
    "These maps were not measured on this model. On three small models of CIFAR-10, token_drop shows best what a "
    f"prediction rests on, and {DEFAULT_METHOD} of the maps of one backward pass."
)
