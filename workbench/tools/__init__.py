"""Tools: typed functions with a JSON schema that a policy may call.

base        what a tool is; a tool from a function or a class; what came of a call
signature   a JSON schema from a function;  schema: from an annotation;  rich_types: from one of pydantic's
arguments   what is wrong with those that do not fit
formats     how calls and answers are written;  turns: a policy's turn, read strictly;  strict_json: a call in it
calculator  arithmetic without `eval`, bounded before it is computed
executor    runs the calls of one turn: trusted tools here, all others side by side in worker processes
awaited     async functions, within the deadline
shared_workers  which of those worker processes is idle or busy;  worker: what happens inside one
handover    a tool as JSON, which a worker makes the same tool of
results     whatever a tool gives back as bounded text
search      documents for a query;  retrieval/: the index that finds them
workers/    the pool of worker processes, for tools and environments
"""

from workbench.tools.base import Tool, ToolResult, schema_of, tool, tools_named

__all__ = ["Tool", "ToolResult", "schema_of", "tool", "tools_named"]
