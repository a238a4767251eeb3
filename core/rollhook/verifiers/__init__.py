"""Built-in verifiers: each scores the response alone, never the prompt, and any response whatever.

text, multiple_choice, form    rules, in this process      labels     what is compared with what
mathematics, math_worker       math-verify, killable       post       HTTP with deadlines and retries
code_tests                     in the run's sandbox        majority   sees all answers to a prompt
judge, remote                  a model, or a service
"""
