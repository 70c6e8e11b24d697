"""Chats as tokens: append-only, every token with its author, untrusted text never a control token.

format        ChatFormat: one tokenizer and its template: prompts, what stands between turns, texts to read
conversation  Conversation: the mutable builder of one trajectory, with four kinds of history
encode        text to ids such that only trusted text may become a control token (invariant 9)
shapes        what the template writes around messages, and does to contents, by the shape of the conversation
skeleton      a template's output cut at placeholders; text that must not act in it
capabilities  what a template can do (system role, tools, repeated users), and how messages are fitted to it
manner        how the template has its model write: calls, thoughts, what ends a turn
rerender      a past written anew by the template, with the sampled ids put back
proof         the check at load time, against the tokenizer's own `apply_chat_template`
"""

from workbench.chat.conversation import Conversation
from workbench.chat.format import ChatFormat

__all__ = ["ChatFormat", "Conversation"]
