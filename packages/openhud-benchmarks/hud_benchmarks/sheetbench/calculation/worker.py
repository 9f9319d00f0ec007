"""Recalculate workbooks for the process that starts this, with a LibreOffice of its own.

    python3 -I worker.py SOFFICE FOLDER

It runs in the Python that has LibreOffice's bindings (`uno`), so it imports nothing of ours. FOLDER holds the user profile.
One line of JSON on standard input, `{"file": ..., "changes": [{"Sheet!A1": 3}, ...]}`, gives one line on standard output:
`{"values": [...]}`, the values of every sheet once for each set of changes, or `{"error": ...}`. Dates are serial numbers.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uno  # type: ignore[import-not-found]
from com.sun.star.beans import PropertyValue  # type: ignore[import-not-found]

START_SECONDS = 170.0
MOST_MEMORY = 4 << 30
"""Address space of LibreOffice, in bytes: a formula may ask for any length of text."""
NEVER, NO_UPDATE, ERROR = 0, 0, 4
"""MacroExecMode.NEVER_EXECUTE, UpdateDocMode.NO_UPDATE, FormulaResult.ERROR."""
ERRORS = {
    502: "#NUM!",
    503: "#NUM!",
    504: "#REF!",
    508: "#NAME?",
    509: "#NAME?",
    519: "#VALUE!",
    521: "#NULL!",
    524: "#REF!",
    525: "#NAME?",
    532: "#DIV/0!",
    32767: "#N/A",
}
SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Common/Security/Scripting"><prop oor:name="MacroSecurityLevel" oor:op="fuse"><value>3</value></prop></item>
<item oor:path="/org.openoffice.Office.Common/Security/Scripting"><prop oor:name="DisableMacrosExecution" oor:op="fuse"><value>true</value></prop></item>
<item oor:path="/org.openoffice.Office.Calc/Content/Update"><prop oor:name="Link" oor:op="fuse"><value>1</value></prop></item>
<item oor:path="/org.openoffice.Office.Calc/Formula/Load"><prop oor:name="OOXMLRecalcMode" oor:op="fuse"><value>0</value></prop></item>
</oor:items>
"""


def connect(soffice: str, folder: Path) -> Any:
    """Start LibreOffice and return its desktop."""
    profile = folder / "profile"
    (profile / "user").mkdir(parents=True, exist_ok=True)
    (profile / "user" / "registrymodifications.xcu").write_text(SETTINGS, encoding="utf-8")
    pipe = f"hud{folder.name}"
    options = ["--headless", "--norestore", "--nologo", "--nodefault", "--nolockcheck"]
    address = f"pipe,name={pipe};urp;"
    command = [soffice, *options, f"-env:UserInstallation=file://{profile}", f"--accept={address}"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    local = uno.getComponentContext()
    resolver = local.ServiceManager.createInstanceWithContext(
        "com.sun.star.bridge.UnoUrlResolver", local
    )
    limit = time.monotonic() + START_SECONDS
    while True:
        try:
            context = resolver.resolve(f"uno:{address}StarOffice.ComponentContext")
            break
        except Exception:
            if process.poll() is not None or time.monotonic() > limit:
                raise
            time.sleep(0.05)
    return context.ServiceManager.createInstanceWithContext("com.sun.star.frame.Desktop", context)


def recalculated(desktop: Any, file: str, changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the values of a workbook after each set of changes, each from the workbook as it is."""
    options: dict[str, Any] = {"Hidden": True, "ReadOnly": True, "MacroExecutionMode": NEVER}
    options["UpdateDocMode"] = NO_UPDATE
    options["FilterName"] = "Calc MS Excel 2007 XML"
    properties = tuple(_property(name, value) for name, value in options.items())
    document = desktop.loadComponentFromURL(f"file://{file}", "_blank", 0, properties)
    if document is None:
        raise ValueError("the workbook cannot be opened")
    try:
        # Otherwise every cell that is set is followed by a calculation of all that depends on it.
        document.enableAutomaticCalculation(False)
        document.calculateAll()
        values_by_change = []
        for change in changes:
            changed = [(_cell(document, place), value) for place, value in change.items()]
            before = [(cell, cell.Formula) for cell, _ in changed]
            for cell, value in changed:
                _set(cell, value)
            document.calculate()
            values_by_change.append({sheet.Name: _values(sheet) for sheet in document.Sheets})
            for cell, formula in before:
                cell.Formula = formula
        return values_by_change
    finally:
        document.close(True)


def _property(name: str, value: object) -> Any:
    property_value = PropertyValue()
    property_value.Name, property_value.Value = name, value
    return property_value


def _cell(document: Any, place: str) -> Any:
    sheet, _, address = place.rpartition("!")
    return document.Sheets.getByName(sheet).getCellRangeByName(address)


def _set(cell: Any, value: Any) -> None:
    if isinstance(value, str):
        cell.String = value
    else:
        cell.Value = float(value)


def _values(sheet: Any) -> list[list[Any]]:
    """Return the rows of a sheet from A1 on: numbers, texts, and errors as `#...`; empty cells are ''."""
    cursor = sheet.createCursor()
    cursor.gotoEndOfUsedArea(False)
    end = cursor.RangeAddress
    area = sheet.getCellRangeByPosition(0, 0, end.EndColumn, end.EndRow)
    rows = [list(row) for row in area.DataArray]
    for part in area.queryFormulaCells(ERROR).RangeAddresses:
        for row in range(part.StartRow, part.EndRow + 1):
            for column in range(part.StartColumn, part.EndColumn + 1):
                code = sheet.getCellByPosition(column, row).getError()
                if code:
                    rows[row][column] = ERRORS.get(code, f"#ERR{code}")
    return rows


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    desktop = connect(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {
                "values": recalculated(desktop, request["file"], request["changes"])
            }
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
