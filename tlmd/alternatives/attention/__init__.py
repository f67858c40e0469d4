"""Attention as one program: scores, softmax and context of a block of rows stay in the caches.

In: the operands as they lie in their tensors (`attention_operand`). Out: the program (`attention`),
that in bfloat16 (`declaration`), and the sketches of both (`attention_sketches`).
"""
