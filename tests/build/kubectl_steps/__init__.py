"""The kubectl scenario, in the order in which it is typed."""

from build.kubectl_steps import (
    apply,
    change,
    core,
    declare,
    delete,
    discover,
    look,
    made,
    people,
    status,
    watch,
)

STEPS = (
    *discover.STEPS,
    *declare.STEPS,
    *look.STEPS,
    *change.STEPS,
    *status.STEPS,
    *watch.STEPS,
    *apply.STEPS,
    *core.STEPS,
    *people.STEPS,
    *made.STEPS,
    *delete.STEPS,
)
