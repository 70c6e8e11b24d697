"""How families of models write calls and thoughts, told from their chat templates.

dialect       what all forms of calls share: the turn around the calls, typed values, complaints that teach the form
json_calls    forms whose arguments are a JSON object: Llama, Mistral, Phi, Granite, Cohere, Nemotron 2, DeepSeek, Kimi
tag_calls     forms with a tag for each argument: Qwen Coder and 3.5, GLM, MiniMax, Muse, DeepSeek V3.2
values        values of Python's and Gemma's kind, read strictly
value_calls   forms whose arguments are such values: LFM2, Gemma 4
channels      messages on channels within one turn: gpt-oss, Muse
thoughts      a thought in the marks of a template, as environments read it
table         the forms by name, and what no template says of a family
telling       which of them a template asks for: by showing it a call and reading it back
fitting       `env.calls.format` of a session against what its template asks for
"""
