"""Walking and changing templates: every step of a program, and programs with each step or body changed."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from firmtoken.compiler.program import Body, Loop, Program, Step, When


def steps_of(program: Program) -> Iterator[Step]:
    """Every step of a template once, in body order, then the blocks."""
    for body in (program.body, *program.blocks.values()):
        yield from _steps_in(body)


def _steps_in(body: Body) -> Iterator[Step]:
    for item in body:
        if isinstance(item, Step):
            yield item
        elif isinstance(item, Loop | When):
            yield from _steps_in(item.body)


def map_bodies(program: Program, change: Callable[[Body], Body]) -> Program:
    """The template with `change` applied to every body, innermost first."""

    def walk(body: Body) -> Body:
        return change(
            tuple(
                replace(item, body=walk(item.body)) if isinstance(item, Loop | When) else item
                for item in body
            )
        )

    return replace(
        program,
        body=walk(program.body),
        blocks={name: walk(body) for name, body in program.blocks.items()},
    )


def map_steps(program: Program, change: Callable[[Step], Step]) -> Program:
    """The template with `change` applied to every step."""
    return map_bodies(
        program,
        lambda body: tuple(change(item) if isinstance(item, Step) else item for item in body),
    )
