"""The items that come with the core, under the name `rollhook/`."""

from __future__ import annotations

from rollhook.hookspecs import SandboxSpec, TopologySpec, VerifierSpec, hookimpl
from rollhook.sandbox import SandboxLimits, open_bubblewrap, open_unsafe, take
from rollhook.topologies import Single
from rollhook.verifiers.code_tests import CodeTests, CodeTestsConfig
from rollhook.verifiers.form import Format, FormatConfig
from rollhook.verifiers.judge import Judge, JudgeConfig
from rollhook.verifiers.labels import AnswerConfig
from rollhook.verifiers.majority import Majority, MajorityConfig
from rollhook.verifiers.mathematics import MathConfig, MathVerifier, open_math
from rollhook.verifiers.multiple_choice import MultipleChoice
from rollhook.verifiers.remote import Remote, RemoteConfig, open_remote
from rollhook.verifiers.text import F1, ExactMatch, Number


@hookimpl
def rollhook_topologies() -> list[TopologySpec]:
    """`single`."""
    return [TopologySpec(name="single", create=lambda config, rollout: Single(), fan_out=False)]


@hookimpl
def rollhook_verifiers() -> list[VerifierSpec]:
    """Rules, math-verify, tests of code, a judge, a service, and agreement in a group."""
    return [
        VerifierSpec(name="exact_match", config=AnswerConfig, create=ExactMatch),
        VerifierSpec(name="number", config=AnswerConfig, create=Number),
        VerifierSpec(name="f1", config=AnswerConfig, create=F1),
        VerifierSpec(name="multiple_choice", config=AnswerConfig, create=MultipleChoice),
        VerifierSpec(name="format", config=FormatConfig, create=Format),
        VerifierSpec(name="math", config=MathConfig, open=open_math, create=MathVerifier),
        VerifierSpec(name="code_tests", config=CodeTestsConfig, create=CodeTests),
        VerifierSpec(name="judge", config=JudgeConfig, create=Judge),
        VerifierSpec(name="remote", config=RemoteConfig, open=open_remote, create=Remote),
        VerifierSpec(name="majority", config=MajorityConfig, create=Majority, group=True),
    ]


@hookimpl
def rollhook_sandboxes() -> list[SandboxSpec]:
    """`bubblewrap`, and `unsafe-subprocess`, which isolates nothing."""
    return [
        SandboxSpec(name="bubblewrap", config=SandboxLimits, open=open_bubblewrap, create=take),
        SandboxSpec(name="unsafe-subprocess", config=SandboxLimits, open=open_unsafe, create=take),
    ]
