"""What to do with a model whose attention cannot be used: the end of many messages."""

CHOOSE_OTHERS = "choose methods that need no attention: occlusion, input_gradient, integrated_gradients, smoothgrad"
