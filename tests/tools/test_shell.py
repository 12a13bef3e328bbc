"""What a command line does, told by the programs that it runs."""

import pytest

from policies.tools.shell import changes_files, kind_of_command, path_in, replaces_file, script_of, stages


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("cat a.py", "file"),
        ("cd /repo && sed -n 1,20p a.py", "file"),
        ("# look again\nnl -ba a.py | sed -n '4,9p'", "file"),
        ("PAGER=cat head -5 x", "file"),
        ("sudo timeout 5 cat x", "file"),
        ("/usr/bin/nl a.py", "file"),
        ("bash -lc 'cat a.py'", "file"),
        ("git show HEAD~1:src/a.py", "file"),
        ("Get-Content a.py", "file"),
        ("ls src && cat a.py", "file"),
        ("for f in a b; do cat $f; done", "file"),
        ("cat a.py | head -20", "file"),
        ("grep -rn x .", "search"),
        ("git grep x", "search"),
        ("rg x | head", "search"),
        ("nl -ba a.py | grep -n x", "search"),
        ("nl -ba a.py | grep -C 5 x", "file"),
        ("grep -n -A20 'def x' a.py", "file"),
        ("grep -rn -A20 'def x' a.d", "search"),
        ("grep -nC 2 x a.py b.py", "search"),
        ("rg -C3 x src", "search"),
        ("find . -name '*.py' | xargs grep -n x", "search"),
        ("find . -name '*.py' -exec grep x {} +", "search"),
        ("grep 'a; ls' x", "search"),
        ("grep -n 'a > b.c' x", "search"),
        ('grep -n "patch" x', "search"),
        ("ls -la", "listing"),
        ("find . -name x", "listing"),
        ("find . -name x | grep y", "listing"),
        ("git ls-files", "listing"),
        ("curl http://x", "web"),
        ("curl -s http://x | jq .a", "data"),
        ("jq . a.json", "data"),
        ("pytest -q", "command"),
        ("pytest -q | grep FAILED", "command"),
        ("ls && pytest", "command"),
        ("echo ok && git add -A && git diff --cached", "command"),
        ("sed -i s/a/b/ f.py", "command"),
        ("cat > a.py << 'EOF'\nx\nEOF", "command"),
        ("rm a\npytest\ncat log", "command"),
        ('cat "an open quote', "file"),
        ("mkdir x", "command"),
        ("", "command"),
    ],
)
def test_m10_a_shell_call_is_what_its_programs_do(command: str, kind: str) -> None:
    assert kind_of_command(command) == kind


@pytest.mark.parametrize(
    ("command", "path", "whole"),
    [
        ("cat > a.py <<'EOF'\ncat b.py\nEOF", "a.py", True),
        ("cat <<EOF > /r/a.py\nx > y\nEOF\npython /r/a.py", "/r/a.py", True),
        ("cd src && cat <<EOF >./a.py\nx\nEOF", "src/a.py", True),
        ("mkdir d\necho x > d/a.txt", "d/a.txt", True),
        ("tee a.py <<EOF\nx\nEOF", "a.py", True),
        ("apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: a.py\n+x\n*** End Patch\nEOF", "a.py", True),
        ("apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a.py\n*** End Patch\nEOF", "a.py", False),
        ("cat >> a.py <<EOF\nx\nEOF", "a.py", False),
        ("tee -a a.py <<EOF\nx\nEOF", "a.py", False),
        ("sed -i 's/a b/c/' src/a.py && git diff", "src/a.py", False),
        ("sed -i -e 's/a/b/' a.py\nsed -i 4d ./a.py", "a.py", False),
        ("ed a.py <<EOF\n4d\nw\nq\nEOF", "a.py", False),
        ("python3 - <<EOF\nopen('a.py', 'w')\nEOF", "", False),
        ("pytest > out.txt 2>&1", "out.txt", False),
        ("cat > a <<EOF\nx\nEOF\ncat > b <<EOF\nx\nEOF", "", True),
    ],
)
def test_a_command_that_writes(command: str, path: str, whole: bool) -> None:
    assert changes_files(command)
    assert path_in(command) == path
    assert replaces_file(command) == whole


@pytest.mark.parametrize(
    "command",
    [
        "sed -n -E -i s/a/b/ f",
        "echo x >> notes.txt",
        "echo x | tee f",
        "python -c \"open('f', 'w').write('x')\"",
        "git apply x.diff",
        "perl -pi -e s/a/b/ f",
        "apply_patch <<X",
    ],
)
def test_a_command_that_changes_files(command: str) -> None:
    assert changes_files(command)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("cat a.py", "a.py"),
        ("cd /r && cat src/a.py", "/r/src/a.py"),
        ("sed -n '1,5p' a.py", "a.py"),
        ("head -n 20 a.py && tail -5 ./a.py", "a.py"),
        ("nl -ba a.py | sed -n 4p | head", "a.py"),
        ("cat 'a b.py'", "a b.py"),
        ("git show HEAD:a.py | head", "a.py"),
        (r"Get-Content -Raw app\core\config.py", "app/core/config.py"),
        (r'gc "app\core\a b.py" | Select-Object -First 200', "app/core/a b.py"),
        (r"Get-Content -Path .\a.ps1 -Encoding UTF8 -TotalCount 20", "a.ps1"),
        (r"cd C:\r; type src\a.ts", "C:/r/src/a.ts"),
        (r'powershell -NoProfile -Command "Get-Content src\a.ts"', "src/a.ts"),
        (r"[System.IO.File]::ReadAllText('src\a.ts')", "src/a.ts"),
        (r"cat a\ b.py", "a b.py"),
        ("jq '.a' a.json", "a.json"),
        ("cat a.py b.py", ""),
        ("cat *.py", ""),
        ("cat $FILE", ""),
        ("grep x a.py", ""),
        ("grep -nC 5 'def x' ./a.py", "a.py"),
        ("nl -ba a.py | grep -A 9 x", "a.py"),
        ("cat", ""),
        ("python -c \"open('f')\"", ""),
        ("pytest 2>&1", ""),
        ("ls > /dev/null", ""),
        ("cat <<< x", ""),
    ],
)
def test_a_command_that_does_not_write(command: str, path: str) -> None:
    assert not changes_files(command)
    assert not replaces_file(command)
    assert path_in(command) == path


def test_a_heredoc_holds_no_commands_and_one_without_an_end_is_none() -> None:
    assert [stage.program for stage in stages("cat <<A <<B > x\nls\nA\nrm\nB\nmake")] == ["cat", "make"]
    assert [stage.program for stage in stages("python -c '1 << a'\nmake")] == ["python", "make"]
    assert [stage.program for stage in stages("cat <<-'END OF'\nmake")] == ["cat", "make"]


def test_a_list_of_words_is_the_script_of_its_shell() -> None:
    assert script_of(["bash", "-lc", "cat a"]) == "cat a"
    assert script_of(["powershell.exe", "-NoProfile", "-Command", "gc a"]) == "gc a"
    assert script_of(["git", "diff"]) == "git diff"
    assert script_of([]) == ""


@pytest.mark.parametrize("start", ["", "bash -c '"])
def test_x9_hostile_commands_end(start: str) -> None:
    """What backtracks over all of it from every place would take hours."""
    for piece in (
        "sed -",
        "<< ",
        "<<E\n",
        "> a",
        ";",
        "A=b ",
        "\n",
        "1 ",
        "-i -",
        ">",
        "'\"w",
        '"',
        "'",
        '\\"',
        "$(",
        "#",
    ):
        command = start + (piece * 50_000)[:50_000]
        assert kind_of_command(command)
        assert len(stages(command)) <= 200
        assert len(path_in(command)) <= 2_048
        assert replaces_file(command) in (True, False)


HERE_STRINGS = [
    ("@'\nfrom x import y\n# it's > a\n'@ | Set-Content app\\core\\x.py", "app/core/x.py", True),
    ('@"\nb | rm\n"@ | Out-File -FilePath b.py -Encoding utf8', "b.py", True),
    ("@'\nb\n'@ | out-file b.py -Append", "b.py", False),
    ("$text = @'\nfoo\n'@\nSet-Content -Encoding utf8 -Value $text -Path a.md", "a.md", False),
    ("Add-Content notes.md 'one more'", "notes.md", False),
]


@pytest.mark.parametrize(("command", "path", "is_whole"), HERE_STRINGS)
def test_a_here_string_of_powershell_is_the_text_of_a_file(command: str, path: str, is_whole: bool) -> None:
    assert changes_files(command)
    assert path_in(command) == path
    assert replaces_file(command) is is_whole
    assert "b | rm" not in str(stages(command))


@pytest.mark.parametrize("end", ["", "'@", "\n'@", "x'@\n\"@"])
def test_here_strings_that_do_not_end_are_read_once(end: str) -> None:
    """Read to the end once for each beginning, these would take an hour."""
    for begin in ("@'\n", '@"\n', "@'\n@\"\n"):
        assert stages(begin * 400_000 + end)
