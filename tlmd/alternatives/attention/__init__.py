"""Attention as one program: scores, softmax and context of a block of rows stay in the caches.

In: the operands as they lie in their tensors (`attention_operand`). Out: the program (`attention`),
in bfloat16 (`attention_short`), and its sketches (`attention_sketches`).
"""
