"""Small trained models of the real Qwen3-VL class whose behavior is known (see docs/controls.md)."""
