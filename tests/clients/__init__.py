"""Real clients, driven against a running server: one module for each, all of them in the words of `heard`.

What is set here is read by libraries while they are imported: without it LiteLLM asks the network for prices, and
mini-swe-agent makes a folder in the user's home and prints a banner.
"""

import os
from pathlib import Path

CACHE = Path(os.environ.get("CLAWRL_CACHE", "~/.cache/clawrl")).expanduser() / "test-clients"
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("LANGSMITH_TRACING", "false")
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", str(CACHE / "mini-swe-agent"))
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
