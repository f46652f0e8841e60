"""The template lints clean, passes a policy scan, and keeps its promises about permissions, data and alarms."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import template as t

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]
OFFLINE = {**os.environ, "AWS_DEFAULT_REGION": "us-east-1", "SAM_CLI_TELEMETRY": "0", "BC_SKIP_MAPPING": "TRUE"}


def run(*command):
    return subprocess.run([str(part) for part in command], env=OFFLINE, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def plain():
    """The template after SAM's transformation."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    return t.transformed()


def test_lints_clean():
    done = run(BIN / "cfn-lint", t.PATH)
    assert (done.returncode, done.stdout) == (0, "")


def test_sam_accepts_it():
    done = run(BIN / "sam", "validate", "--lint", "--template", t.PATH)
    assert done.returncode == 0, done.stdout + done.stderr


def test_policy_scan_finds_nothing_that_is_not_explained():
    done = run(BIN / "checkov", "--file", t.PATH, "--skip-download", "--output", "json", "--quiet")
    results = json.loads(done.stdout)["results"]
    failed = [f"{check['check_id']} {check['resource']}: {check['check_name']}" for check in results["failed_checks"]]
    assert failed == []
    assert json.loads(done.stdout)["summary"]["passed"] > 50


def test_every_exception_from_the_scan_says_why():
    for name, resource in t.load()["Resources"].items():
        for skip in resource.get("Metadata", {}).get("checkov", {}).get("skip", []):
            assert len(skip["comment"]) > 30, f"{name}: {skip['id']}"


def statements(template):
    """Every statement of an identity policy, with the name of its resource."""
    for name, role in t.resources(template, "AWS::IAM::Role").items():
        for policy in role["Properties"].get("Policies", []):
            for statement in policy["PolicyDocument"]["Statement"]:
                yield from ((name, one) for one in t.alternatives(statement))
    for name, policy in t.resources(template, "AWS::IAM::ManagedPolicy").items():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            yield name, statement


def as_list(value):
    return value if isinstance(value, list) else [value]


# What may stand for many things in an ARN: all objects below a prefix, all streams of a log group, ...
WHOLE = re.compile(
    r"""^\$\{Bucket\.Arn\}/(blobs|tables)/\*$ | ^\$\{\w+Log\.Arn\}:\*$ | ^\$\{Table\.Arn\}/stream/\*$
    | :s3:::\$\{IngestBucket\}/\*$ | /@connections/\*$ | :table/\$\{GlueDatabase\}/\*$""",
    re.VERBOSE,
)


def test_every_permission_names_actions_and_resources(plain):
    seen = list(statements(plain))
    assert len(seen) > 20
    for name, statement in seen:
        where = f"{name}: {statement.get('Sid')}"
        assert statement["Effect"] == "Allow", where
        assert "NotAction" not in statement and "NotResource" not in statement, where
        for action in as_list(statement["Action"]):
            assert "*" not in action, f"{where}: {action}"
        for resource in as_list(statement["Resource"]):
            for one in t.alternatives(resource):
                text = one if isinstance(one, str) else one.get("Fn::Sub", "")
                assert "*" not in text or WHOLE.search(text), f"{where}: {text}"
                assert one != "*", where


def test_the_data_catalogue_is_named_only_where_it_is_wanted(plain):
    assert plain["Parameters"]["GlueDatabase"]["Default"] == ""
    (policy,) = plain["Resources"]["MaintainRole"]["Properties"]["Policies"]
    chosen = [s["Fn::If"] for s in policy["PolicyDocument"]["Statement"] if "Fn::If" in s]
    ((condition, mirrors, otherwise),) = chosen
    assert (condition, otherwise) == ("HasGlueDatabase", {"Ref": "AWS::NoValue"})
    # Tables, and a database that is not there yet; it neither lists nor removes databases.
    tables = [f"glue:{verb}Table" for verb in ("Create", "Delete", "Get", "Update")]
    assert sorted(mirrors["Action"]) == sorted(["glue:CreateDatabase", *tables])
    ends = [resource["Fn::Sub"].rsplit(":", 1)[1] for resource in mirrors["Resource"]]
    assert ends == ["catalog", "database/${GlueDatabase}", "table/${GlueDatabase}/*"]
    others = [name for name, statement in statements(plain) if "glue:" in json.dumps(statement["Action"])]
    assert others == ["MaintainRole"]


def test_every_function_has_a_role_of_its_own_and_no_broad_managed_policy(plain):
    roles = {}
    for name, made in t.resources(plain, "AWS::Lambda::Function").items():
        roles.setdefault(made["Properties"]["Role"]["Fn::GetAtt"][0], []).append(name)
    # The two forms of the HTTP function are one program with one task.
    assert sorted(roles.pop("HttpRole")) == ["HttpFunction", "HttpStreamFunction"]
    assert all(len(users) == 1 for users in roles.values()), roles
    for name, role in t.resources(plain, "AWS::IAM::Role").items():
        for policy in role["Properties"].get("ManagedPolicyArns", []):
            for one in t.alternatives(policy):
                assert one in ({"Ref": "StorePolicy"}, {"Ref": "KeyPolicy"}), name


def test_nothing_is_open_unless_somebody_says_so(plain):
    assert plain["Parameters"]["Access"]["Default"] == "iam"
    guarded = {"Fn::If": ["IsOpen", "NONE", "AWS_IAM"]}
    routes = t.resources(plain, "AWS::ApiGatewayV2::Route")
    assert routes["HttpRoute"]["Properties"]["AuthorizationType"] == guarded
    assert routes["SocketConnect"]["Properties"]["AuthorizationType"] == guarded
    assert {name for name, r in routes.items() if r["Properties"]["AuthorizationType"] == "NONE"} == {
        "SocketDefault",
        "SocketDisconnect",
    }
    for name, url in t.resources(plain, "AWS::Lambda::Url").items():
        assert url["Properties"]["AuthType"] == guarded, name
    for name, permission in t.resources(plain, "AWS::Lambda::Permission").items():
        assert permission["Properties"]["Principal"] != "*" or permission.get("Condition") == "IsOpen", name


def test_data_outlives_the_stack():
    made = t.load()["Resources"]
    for name in ("Table", "Bucket", "Key"):
        assert (made[name]["DeletionPolicy"], made[name]["UpdateReplacePolicy"]) == ("Retain", "Retain"), name


def test_every_function_has_a_log_that_ends_and_alarms(plain):
    logs = t.resources(plain, "AWS::Logs::LogGroup")
    alarms = [a["Properties"] for a in t.resources(plain, "AWS::CloudWatch::Alarm").values()]
    for name, made in t.resources(plain, "AWS::Lambda::Function").items():
        log = made["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
        assert logs[log]["Properties"]["RetentionInDays"] == {"Ref": "LogRetentionDays"}, name
        watched = {
            a["MetricName"] for a in alarms if {"Name": "FunctionName", "Value": {"Ref": name}} in a["Dimensions"]
        }
        assert watched == {"Errors", "Throttles"}, name


def test_every_queue_has_dead_letters_and_every_dead_letter_an_alarm(plain):
    queues = t.resources(plain, "AWS::SQS::Queue")
    ends = {
        q["Properties"]["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]
        for q in queues.values()
        if "RedrivePolicy" in q["Properties"]
    }
    ends.add("FailedInvocations")
    assert {name for name, q in queues.items() if "RedrivePolicy" not in q["Properties"]} == ends
    alarms = t.resources(plain, "AWS::CloudWatch::Alarm").values()
    watched = {
        d["Value"]["Fn::GetAtt"][0] for a in alarms for d in a["Properties"]["Dimensions"] if d["Name"] == "QueueName"
    }
    assert watched == ends


def test_a_queue_hides_a_message_for_six_times_its_functions_timeout(plain):
    functions = t.resources(plain, "AWS::Lambda::Function")
    for name, mapping in t.resources(plain, "AWS::Lambda::EventSourceMapping").items():
        source = mapping["Properties"]["EventSourceArn"]
        queue = source.get("Fn::GetAtt", [""])[0]
        if queue.endswith("Queue"):
            timeout = functions[mapping["Properties"]["FunctionName"]["Ref"]]["Properties"]["Timeout"]
            assert plain["Resources"][queue]["Properties"]["VisibilityTimeout"] == 6 * timeout, name


def test_every_binary_is_a_crate_of_the_workspace():
    crates = {tomllib.loads(path.read_text())["package"]["name"] for path in ROOT.glob("functions/*/Cargo.toml")}
    functions = t.resources(t.load(), "AWS::Serverless::Function")
    assert {f["Metadata"]["BuildProperties"]["Binary"] for f in functions.values()} == crates


def test_the_dashboard_is_json():
    body = t.load()["Resources"]["Overview"]["Properties"]["DashboardBody"]["Fn::Sub"]
    titles = [widget["properties"]["title"] for widget in json.loads(body)["widgets"]]
    assert "Oldest row without a table, s" in titles
