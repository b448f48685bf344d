"""Temperature 0 says the same each time, over an answer long enough to meet ties."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer
