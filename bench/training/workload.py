# SPDX-License-Identifier: GPL-3.0-or-later
"""The workload: Llama-shaped models with random weights, and batches of random tokens."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

import torch
from torch import Tensor, nn

LR, BETAS, EPS, WEIGHT_DECAY = 1e-4, (0.9, 0.95), 1e-8, 0.1
MAX_NORM = 1.0
SEED = 20261122


class Shape(NamedTuple):
    """A model's shape, and the length of its sequences."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int = 32000
    length: int = 2048


SHAPES: Dict[str, Shape] = {
    "toy": Shape(64, 160, 3, 4, 2, 256, 32),
    "small": Shape(1024, 2816, 12, 16, 8),
    "3g": Shape(3072, 8192, 28, 24, 8),
    "6.7g": Shape(4096, 11008, 32, 32, 32),  # llama-2-7b
}

CLIP_FACTOR = 64.0
CLIPS = ("natural", "never", "sometimes", "always")


def shape(size: str, layers: Optional[int]) -> Shape:
    """The shape of that name, with another number of layers if one is given."""
    found = SHAPES[size]
    return found._replace(layers=layers) if layers else found


def build(of: Shape, device: torch.device, checkpointing: bool = True) -> nn.Module:
    """A bf16 model in training mode, with the same weights at every call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=of.hidden, intermediate_size=of.ffn, num_hidden_layers=of.layers,
        num_attention_heads=of.heads, num_key_value_heads=of.kv_heads,
        vocab_size=of.vocabulary, max_position_embeddings=of.length, tie_word_embeddings=False,
        use_cache=False)
    torch.manual_seed(SEED)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            model: nn.Module = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def config(of: Shape) -> Dict[str, Any]:
    """The model's config.json."""
    return {"architectures": ["LlamaForCausalLM"], "hidden_size": of.hidden,
            "intermediate_size": of.ffn, "num_hidden_layers": of.layers,
            "num_attention_heads": of.heads, "num_key_value_heads": of.kv_heads,
            "vocab_size": of.vocabulary, "max_position_embeddings": of.length}


def deterministic() -> None:
    """From now on equal runs give equal bits. Operations without a deterministic kernel only warn,
    and then torch leaves the backward passes of fused attention as they are: they are turned off."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)


def parameters(model: nn.Module) -> int:
    """Number of parameters."""
    return sum(param.numel() for param in model.parameters())


def batches(of: Shape, micro_batch: int, device: torch.device) -> List[Tensor]:
    """256 batches of random tokens. A run that repeated them would learn them, and then its
    gradients are 0 and no norm exceeds a limit."""
    generator = torch.Generator().manual_seed(SEED + micro_batch)
    return [torch.randint(0, of.vocabulary, (micro_batch, of.length),
                          generator=generator).to(device) for _ in range(256)]


def deepspeed(stage: int, micro_batch: int, pin: bool = True, **more: Any) -> Dict[str, Any]:
    """DeepSpeed's configuration for this workload: ZeRO of a stage, its AdamW on the CPU, in pinned
    memory unless `pin` is false. `more`: keys of zero_optimization."""
    zero: Dict[str, Any] = {
        "stage": stage, "offload_optimizer": {"device": "cpu", "pin_memory": pin},
        "overlap_comm": True, "contiguous_gradients": True}
    if stage == 3:
        zero["sub_group_size"] = int(1e8)
    zero.update(more)
    return {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": 1,
            "gradient_clipping": MAX_NORM, "bf16": {"enabled": True}, "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": {
                "lr": LR, "betas": list(BETAS), "eps": EPS, "weight_decay": WEIGHT_DECAY}}}


def loss_factor(clip: str, iteration: int) -> float:
    """The factor of the loss that brings the norm to the wanted side of MAX_NORM. It is a power of
    two, which changes no significands of gradients. AdamW's update hardly depends on it."""
    if clip == "always":
        return CLIP_FACTOR
    if clip == "never":
        return 1.0 / CLIP_FACTOR
    if clip == "sometimes":
        draw = (iteration * 2654435761 + SEED) & 0xFFFFFFFF
        return CLIP_FACTOR if (draw >> 15) & 1 else 1.0 / CLIP_FACTOR
    return 1.0


def loss_of(model: Any, tokens: Tensor, factor: float) -> Tensor:
    """The loss, times the factor."""
    loss: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    return loss if factor == 1.0 else loss * factor
