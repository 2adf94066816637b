"""Templates of Helm from objects: parts of them are replaced by what Helm fills in."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

#: Only the lines of a hole: as a mapping's entry, or an item of a list.
_LINE = re.compile(r"^( *)(?:- )?(hole\d+x)(?:: null)?$")
_HOLE = re.compile(r"hole\d+x")


@dataclass(slots=True)
class Holes:
    """Texts of a template by the words that stand for them in objects."""

    texts: dict[str, str] = field(default_factory=dict)

    def __call__(self, text: str) -> str:
        """Word that stands for the text: as a scalar, as a key whose value is None, or as an item.

        As a key or an item it stands for whole lines, which are indented; ``{n}`` in them is the indentation.
        """
        word = f"hole{len(self.texts)}x"
        self.texts[word] = text
        return word

    def given(self, path: str, key: str, otherwise: Any = None) -> dict[str, Any]:
        """Entry whose value is that of the values at ``path``, or ``otherwise`` where that is empty."""
        start = f"{{{{- with .Values.{path} }}}}\n{key}:\n  {{{{- toYaml . | nindent {{n}} }}}}"
        if otherwise is None:
            return {self(start + "\n{{- end }}"): None}
        return {self(start + "\n{{- else }}"): None, key: otherwise, self("{{- end }}"): None}

    def added(self, path: str) -> str:
        """What the values add to a list or a mapping."""
        return self(f"{{{{- with .Values.{path} }}}}\n{{{{- toYaml . | nindent {{n}} }}}}\n{{{{- end }}}}")

    def only_if(self, condition: str, entries: dict[str, Any]) -> dict[str, Any]:
        """Entries that are there on a condition."""
        return {self(f"{{{{- if {condition} }}}}"): None, **entries, self("{{- end }}"): None}

    def dump(self, content: Any) -> str:
        """Text of the template."""
        text = yaml.safe_dump(content, sort_keys=False, width=1_000_000)
        return "".join(self._line(line) for line in text.replace("{{", '{{ "{{" }}').splitlines())

    def _line(self, line: str) -> str:
        found = _LINE.match(line)
        if found and not self.texts[found[2]].startswith("{{ "):  # that is a scalar
            indent = found[1]
            lines = self.texts[found[2]].splitlines()
            nested = len(indent) + (2 if any(re.match(r"\w+:$", part) for part in lines) else 0)
            return "".join(f"{indent}{part.replace('{n}', str(nested))}\n" for part in lines)
        return _HOLE.sub(lambda word: self.texts[word[0]], line) + "\n"


def merged(base: Any, changed: Any, condition: str, holes: Holes) -> Any:
    """Both forms of an object as one: what is only in ``changed``, or differs there, is on the condition."""
    if isinstance(base, dict) and isinstance(changed, dict):
        made: dict[str, Any] = {}
        for key, value in base.items():
            made[key] = merged(value, changed[key], condition, holes)
        more = {key: value for key, value in changed.items() if key not in base}
        return made | (holes.only_if(condition, more) if more else {})
    if isinstance(base, list) and isinstance(changed, list) and base != changed:
        if len(base) == len(changed):
            return [merged(*both, condition, holes) for both in zip(base, changed, strict=True)]
        if [item for item in changed if item in base] == base:
            opened, ended = holes(f"{{{{- if {condition} }}}}"), holes("{{- end }}")
            return [part for item in changed for part in ((item,) if item in base else (opened, item, ended))]
    if base != changed:
        raise ValueError(f"a component changes {base!r} to {changed!r}, which the chart cannot express")
    return base
