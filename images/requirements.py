"""Print the requirements of one of rljob's images, from pyproject.toml: `requirements.py EXTRA`.

Called by the Dockerfiles. An image has its own extra, and the contract's packages where it reads RLJobs.
"""

import sys
import tomllib
from pathlib import Path

CONTRACT = {"operator": ("pydantic", "pyyaml"), "device-plugin": ()}
"""What `rljob_api` imports, by the extra of the image that holds it."""

name = sys.argv[1]
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
contract = [line for line in project["dependencies"] if line.startswith(CONTRACT[name])]
sys.stdout.write("\n".join([*contract, *project["optional-dependencies"][name]]) + "\n")
