"""Runs where verifiers 0.1.14 is installed: what its own reader of results finds in a folder.

python read_verifiers_v0.py FOLDER
"""

import json
import sys
from pathlib import Path

from pydantic import TypeAdapter
from verifiers.types import Messages
from verifiers.utils.save_utils import load_outputs, validate_resume_metadata

folder, messages = Path(sys.argv[1]), TypeAdapter(Messages)
rows = load_outputs(folder)
meta = json.loads((folder / "metadata.json").read_text())
validate_resume_metadata(
    folder, meta["env_id"], meta["model"], meta["num_examples"], meta["rollouts_per_example"]
)
print(
    json.dumps(
        [
            {
                "example": row["example_id"],
                "reward": row["reward"],
                "said": [
                    m.role for m in messages.validate_python(row["prompt"] + row["completion"])
                ],
                "tokens": [step["tokens"] for step in row["trajectory"]],
            }
            for row in rows
        ]
    )
)
