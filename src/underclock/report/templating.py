"""Templates to text, set up once for every page."""

from collections.abc import Callable, Mapping


def rendered(
    template: str,
    filters: Mapping[str, Callable[..., object]],
    *,
    package: str = "underclock.report",
    **values: object,
) -> str:
    """Render a template; everything it is given is escaped.

    Args:
        template: File name under ``templates``, of the package or of this room.
        package: Whose template it is.
        filters: For this template, by name.
        values: What the template shows; a name it uses and is not given is an error.
    """
    import jinja2  # noqa: PLC0415 - a command that prints tables need not load it

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name) for name in (package, "underclock.report")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(**values)
