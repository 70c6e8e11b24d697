"""Which environment variables a worker process is given: a list of what may pass, not of what may not.

Tools and environments are other people's code, and a key of the user's (HF_TOKEN, OPENAI_API_KEY, anything) is none of
their business. A key that one of them does need is named by the user, in the environment, where no configuration of a
stranger's can name it:

    WORKBENCH_WORKER_ENV=JUDGE_API_KEY,JUDGE_URL
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from workbench.values.errors import ConfigError

ALSO = "WORKBENCH_WORKER_ENV"

_PASSED = frozenset(
    (
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TEMP",
        "TMP",
        "HOSTNAME",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "JAVA_HOME",
        "DISPLAY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "TOKENIZERS_PARALLELISM",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HF_DATASETS_CACHE",
        "HF_DATASETS_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
    )
)
_FAMILIES = (
    "LC_",
    "XDG_",
    "PYTHON",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMEXPR_",
    "KMP_",
    "GOMP_",
    "CUDA_",
    "NVIDIA_",
    "NLTK_",
)
_PROXIES = frozenset(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"))
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environment` that a worker process is given. Raises ConfigError where WORKBENCH_WORKER_ENV holds
    what is no list of names."""
    also = [name.strip() for name in environment.get(ALSO, "").split(",") if name.strip()]
    if wrong := [name for name in also if not _NAME.fullmatch(name)]:
        raise ConfigError(
            f"{ALSO} names variables that tools and environments may see, separated by commas, such as "
            f"{ALSO}=JUDGE_URL,JUDGE_KEY; got {wrong[0][:40]!r} in it"
        )
    return {
        name: value
        for name, value in environment.items()
        if name in also or _is_harmless(name, value)
    }


def _is_harmless(name: str, value: str) -> bool:
    if name.upper() in _PROXIES:
        return "@" not in value  # http://user:password@host
    return name in _PASSED or name.startswith(_FAMILIES) and not _SECRET.search(name)
