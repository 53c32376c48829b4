"""The operator's command line: every setting has an option, and a wrong value is named."""

import dataclasses
from typing import Any

import pytest

from rljob_operator.arguments import parse
from rljob_operator.settings import ProcessOptions, Settings

IMAGES = ["--runtime-image", "example.com/runtime:1", "--ascend-image", "example.com/ascend:1"]

GIVEN = {  # option and value, and the setting that it makes
    "--ray-version=2.61.0": ("ray_version", "2.61.0"),
    "--image-pull-secret=login": ("image_pull_secrets", ("login",)),
    "--stop-seconds=60": ("stop_seconds", 60),
    "--unreachable-seconds=0": ("unreachable_seconds", 0),
    "--emulated-device-plugin": ("emulated_device_plugin", True),
    "--shared-memory=host-path": ("shared_memory", "host-path"),
    "--kueue": ("kueue", True),
    "--volcano": ("volcano", True),
    "--no-network-policy": ("network_policy", False),
    "--egress-cidr=10.0.0.0/8": ("egress_cidrs", ("10.0.0.0/8",)),
    "--metrics-namespace=monitoring": ("metrics_namespace", "monitoring"),
    "--faults-namespace=mindx-dl": ("faults_namespace", "mindx-dl"),
    "--namespace=team-a": ("watch_namespaces", ("team-a",)),
    "--operator-namespace=system": ("operator_namespace", "system"),
    "--runtime-image=example.com/runtime:2": ("runtime_image", "example.com/runtime:2"),
    "--ascend-image=example.com/ascend:2": ("ascend_image", "example.com/ascend:2"),
}


def refused(capsys, *arguments):
    """What is said about the arguments, which end the process with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        parse([*IMAGES, *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_without_options_the_settings_are_the_models_own():
    settings, process = parse(IMAGES)

    assert settings == Settings(
        runtime_image="example.com/runtime:1", ascend_image="example.com/ascend:1"
    )
    assert process == ProcessOptions(workers=8, port=8080, log_level="INFO")


@pytest.mark.parametrize("option", GIVEN)
def test_each_option_sets_its_setting_and_no_other(option):
    plain, _ = parse(IMAGES)

    settings, _ = parse([*IMAGES, option])

    name, value = GIVEN[option]
    changed: dict[str, Any] = {name: value}
    assert settings == dataclasses.replace(plain, **changed)
    assert settings != plain


def test_every_setting_has_an_option():
    assert {name for name, _ in GIVEN.values()} == {f.name for f in dataclasses.fields(Settings)}


def test_repeated_options_add_up_in_order_and_without_doubles():
    settings, _ = parse([*IMAGES, "--namespace=b", "--namespace=a", "--namespace=b"])

    assert settings.watch_namespaces == ("b", "a")


def test_the_process_has_options_of_its_own():
    _, process = parse([*IMAGES, "--workers=2", "--port=9000", "--log-level=DEBUG"])

    assert process == ProcessOptions(workers=2, port=9000, log_level="DEBUG")


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--egress-cidr=10.0.0.1", "'10.0.0.1' is no network (like 10.0.0.0/8)"),
        ("--egress-cidr=10.0.0.1/8", "'10.0.0.1/8' is no network: 10.0.0.1/8 has host bits set"),
        ("--namespace=Team_A", "'Team_A' is no name of a namespace"),
        ("--image-pull-secret=", "'' is no name of a Secret"),
        ("--runtime-image=a b", "'a b' is no name of an image"),
        ("--ray-version=nightly", "'nightly' is no version of Ray (like 2.60.0)"),
        ("--stop-seconds=10m", "'10m' is no whole number from 1 to 86400"),
        ("--workers=0", "'0' is no whole number from 1 to 256"),
        ("--port=65536", "'65536' is no whole number from 0 to 65535"),
        ("--shared-memory=yes", "invalid choice: 'yes'"),
        ("--stop=60", "unrecognized arguments: --stop=60"),
    ],
)
def test_a_wrong_value_ends_the_process_with_its_option_value_and_remedy(capsys, argument, told):
    message = refused(capsys, argument)

    assert told in message
    assert argument.partition("=")[0] in message


def test_both_images_must_be_named(capsys):
    with pytest.raises(SystemExit):
        parse(IMAGES[:2])

    assert "required: --ascend-image" in capsys.readouterr().err


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("rljob-operator ")
