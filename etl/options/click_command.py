"""How a click command becomes a process: its failures are ours, with our lines and statuses."""

import click

from etl.errors import UsageError


def invoke(command: click.Command, name: str, context: object = None) -> int:
    """Run ``command`` on this process's arguments; returns its exit status. ``context`` is click's ``obj``.

    Raises UsageError for what click finds wrong, and whatever the command raises.
    """
    try:
        result = command.main(standalone_mode=False, prog_name=name, obj=context)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return UsageError.status
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else name
        raise UsageError(f"{error.format_message()} (see: {path} --help)") from None
    return result if isinstance(result, int) else 0
