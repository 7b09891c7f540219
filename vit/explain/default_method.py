"""The kind of map that the command line, the report of a run and the explorer draw unless another is named."""

# By benchmarks/results/explanations.md, the best on photographs of the methods that need one backward pass: surely above
# every control, in each training and on the packaged model. `token_drop` and `occlusion` score higher, but need a pass
# for each patch, 20 times as long or more. `explain()` in Python stays at "rollout".
DEFAULT_METHOD = "gradient_rollout"
