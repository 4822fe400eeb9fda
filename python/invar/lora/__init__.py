"""vLLM's place of LoRARequest."""

from .request import LoRARequest as LoRARequest
