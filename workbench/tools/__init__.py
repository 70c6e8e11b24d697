"""Tools: typed functions with a JSON schema that a policy may call.

    base        what a tool is; a tool from a function or a class; what came of a call
    schema      a JSON schema from a signature and a docstring; what is wrong with arguments
    formats     how calls and answers stand in the policy's text, read strictly
    calculator  arithmetic without `eval`, bounded before it is computed
    desk        runs the calls of one turn: trusted tools here, all others side by side in worker processes
    pool        those worker processes: warm, busy, killed;  worker: what happens inside one
    results     whatever a tool gives back as bounded text
    mcp         the tools of any MCP server
"""
from workbench.tools.base import Tool, ToolResult, schema_of, tool, tools_named

__all__ = ["Tool", "ToolResult", "schema_of", "tool", "tools_named"]
