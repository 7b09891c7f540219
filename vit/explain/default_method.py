"""The kind of map that the command line, the report of a run and the explorer draw unless another is named."""

# Of the methods of one backward pass that are free to use, it is the best by dropped tokens in each of three trainings,
# and above every control there (benchmarks/results/explanations.md). attnlrp is better by every measure at little cost,
# but its authors' library calls it patented, and free of charge for personal and scientific purposes alone: a user has
# to ask for it. explain() in Python computes "rollout" unless it is told otherwise, because its callers rely on it.
DEFAULT_METHOD = "relevance"

NOT_MEASURED = (
    "These maps were not measured on this model. On three small models of CIFAR-10, attnlrp shows best what a "
    f"prediction rests on, and {DEFAULT_METHOD} of the other maps of one backward pass."
)
