#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a transformers causal language model on a text file with the stock Trainer.

    python examples/finetune_trainer.py --model DIR --text TEXT.txt --out runs/mine
    python examples/finetune_trainer.py --random --text README.md --out runs/toy --steps 20

A folder given with --model holds a model and its tokenizer as save_pretrained writes them. With
--random a Llama of the given size starts from random weights and reads bytes. Needs transformers
4.47 or later; docs/integrations.md says what older ones need.
"""

from __future__ import annotations

import argparse
from typing import Any, Dict, List

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import hocket


class Pieces(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Consecutive pieces of a tokenized text."""

    def __init__(self, tokens: List[int], length: int) -> None:
        self.tokens = torch.tensor(tokens)
        self.length = length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, number: int) -> Dict[str, torch.Tensor]:
        piece = self.tokens[number * self.length : (number + 1) * self.length]
        return {"input_ids": piece, "labels": piece}


def load(args: argparse.Namespace) -> Any:
    """The model in bf16, and the text as tokens."""
    with open(args.text, "rb") as file:
        raw = file.read()
    if args.random:
        config = LlamaConfig(
            vocab_size=256,
            hidden_size=args.width,
            intermediate_size=3 * args.width,
            num_hidden_layers=args.layers,
            num_attention_heads=max(1, args.width // 32),
            max_position_embeddings=args.length,
            tie_word_embeddings=False,
        )
        torch.manual_seed(0)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            return LlamaForCausalLM(config).to(torch.bfloat16), list(raw)
    model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    return model, tokenizer(raw.decode(errors="replace"))["input_ids"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="a folder written by save_pretrained")
    source.add_argument("--random", action="store_true", help="random weights, bytes as tokens")
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True, help="folder for checkpoints")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--max-grad-norm", type=float, default=1.0, help="0: no clipping")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save-steps", type=int, default=50, help="0: no checkpoints")
    parser.add_argument("--overlap", choices=("none", "forward", "both"), default="forward")
    parser.add_argument("--plan", help="a plan file, or auto")
    parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
    args = parser.parse_args()

    model, tokens = load(args)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.out,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            gradient_accumulation_steps=args.accumulate,
            learning_rate=args.lr,
            weight_decay=0.01,
            lr_scheduler_type="cosine",
            warmup_steps=args.steps // 10,
            max_grad_norm=args.max_grad_norm,
            dataloader_num_workers=args.workers,
            save_strategy="steps" if args.save_steps else "no",
            save_steps=args.save_steps or 1,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Pieces(tokens, args.length),
        optimizer_cls_and_kwargs=(
            hocket.TrainerFactory,
            {"overlap": args.overlap, "plan": args.plan},
        ),
    )
    trainer.train(resume_from_checkpoint=args.resume)
    opt = trainer.optimizer.optimizer  # accelerate has wrapped it
    print(opt.explain(), end="")
    print("checksum", opt.checksum())


if __name__ == "__main__":
    main()
