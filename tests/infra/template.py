"""The template as plain data: every short tag becomes the function that it stands for."""

from pathlib import Path

import yaml

PATH = Path(__file__).resolve().parents[2] / "infra" / "template.yaml"


class _Loader(yaml.SafeLoader):
    pass


def _function(loader, suffix, node):
    name = suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}"
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
        # The short form of GetAtt is one word.
        return {name: value.split(".", 1) if suffix == "GetAtt" else value}
    if isinstance(node, yaml.SequenceNode):
        return {name: loader.construct_sequence(node, deep=True)}
    return {name: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _function)


def load():
    """The template."""
    return yaml.load(PATH.read_text(), _Loader)


def transformed():
    """The template as CloudFormation gets it, with SAM's own resources made plain."""
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    template = load()
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = "s3://bucket/key"
    template["Globals"]["Function"].pop("CodeUri")
    # The empty table of managed policies: the template names none of AWS's.
    return Translator({}, Parser()).translate(template, {})


def resources(template, kind):
    """Resources of a kind, by their logical names."""
    return {name: made for name, made in template["Resources"].items() if made["Type"] == kind}


def alternatives(value):
    """What an `If` can choose, or the value itself; nothing for `AWS::NoValue`."""
    if isinstance(value, dict) and "Fn::If" in value:
        _, then, otherwise = value["Fn::If"]
        return [*alternatives(then), *alternatives(otherwise)]
    return [] if value == {"Ref": "AWS::NoValue"} else [value]
