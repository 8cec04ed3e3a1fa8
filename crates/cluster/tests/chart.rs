//! The Helm chart: its manifest with default values, which is a file, and what it gives to whom.

use std::path::PathBuf;
use std::process::Command;

use clap::Parser;
use millstream_cluster::ClusterArgs;
use millstream_daemon::DaemonArgs;
use serde::Deserialize as _;
use serde_yaml_ng::{Deserializer, Value};

fn dist(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/kubernetes")).join(name)
}

/// The chart as Helm renders it, with further flags; none if there is no Helm.
fn rendered(flags: &[&str]) -> Option<String> {
    let mut helm = Command::new("helm");
    helm.args(["template", "millstream"]).arg(dist("millstream"));
    helm.args(["--namespace", "millstream", "--include-crds", "--kube-version", "1.31.0"]).args(flags);
    let Ok(out) = helm.output() else {
        eprintln!("skipped: there is no helm");
        return None;
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8(out.stdout).unwrap())
}

/// Objects of a manifest.
fn objects(manifest: &str) -> Vec<Value> {
    let documents = Deserializer::from_str(manifest).map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

fn file() -> Vec<Value> {
    objects(&std::fs::read_to_string(dist("millstream.yaml")).unwrap())
}

fn kind<'v>(objects: &'v [Value], kind: &str, name: &str) -> &'v Value {
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    objects.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The members of a list, as text.
fn words(list: &Value) -> Vec<&str> {
    list.as_sequence().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

/// A container of the DaemonSet.
fn container<'v>(objects: &'v [Value], list: &str, name: &str) -> &'v Value {
    let spec = &kind(objects, "DaemonSet", "millstream")["spec"]["template"]["spec"];
    spec[list].as_sequence().unwrap().iter().find(|container| container["name"] == name).unwrap()
}

#[test]
fn the_manifest_is_what_helm_renders_with_default_values() {
    let Some(current) = rendered(&[]) else { return };
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(dist("millstream.yaml"), &current).unwrap();
    }
    let file = std::fs::read_to_string(dist("millstream.yaml")).unwrap();
    assert!(file == current, "BLESS=1 writes it");
    let mut lint = Command::new("helm");
    let out = lint.args(["lint", "--strict"]).arg(dist("millstream")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn the_daemon_has_two_capabilities_and_the_agent_none() {
    let objects = file();
    let capabilities = |list, name| &container(&objects, list, name)["securityContext"]["capabilities"];
    let daemon = capabilities("containers", "daemon");
    assert_eq!(words(&daemon["drop"]), ["ALL"]);
    assert_eq!(words(&daemon["add"]), ["NET_ADMIN", "SYS_ADMIN"]);
    for (list, name) in [("containers", "agent"), ("initContainers", "prepare")] {
        assert_eq!(words(&capabilities(list, name)["drop"]), ["ALL"]);
        assert!(capabilities(list, name).get("add").is_none());
        assert_eq!(container(&objects, list, name)["securityContext"]["allowPrivilegeEscalation"], false);
    }
    let text = serde_yaml_ng::to_string(kind(&objects, "DaemonSet", "millstream")).unwrap();
    assert!(!text.contains("privileged"), "{text}");
}

#[test]
fn the_chart_has_the_version_of_the_command() {
    let chart = std::fs::read_to_string(dist("millstream/Chart.yaml")).unwrap();
    let chart: Value = serde_yaml_ng::from_str(&chart).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn agents_write_no_wanted_state() {
    let objects = file();
    let rules = kind(&objects, "ClusterRole", "millstream-agent")["rules"].as_sequence().unwrap();
    for rule in rules {
        let verbs = words(&rule["verbs"]);
        let writes = verbs.iter().any(|verb| ["patch", "update", "delete", "*"].contains(verb));
        assert!(!writes || words(&rule["resources"]) == ["millstreamnodes/status"], "{rule:?}");
    }
}

#[test]
fn the_command_takes_the_arguments_of_the_containers() {
    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        cluster: ClusterArgs,
    }
    #[derive(Debug, Parser)]
    struct DaemonWords {
        #[command(flatten)]
        daemon: DaemonArgs,
    }
    let digest = "0".repeat(64);
    let flags = format!(
        "bundles[0].program=router,bundles[0].reference=r/n@sha256:{digest},registry.plainHttp=true,\
         registry.credentialsSecret=login,storeKeySecret=key,webTokenSecret=web"
    );
    let manifests = std::iter::once(file());
    let manifests = manifests.chain(rendered(&["--set", &flags]).map(|manifest| objects(&manifest)));
    for objects in manifests {
        let daemon = words(&container(&objects, "containers", "daemon")["args"]);
        DaemonWords::try_parse_from(&daemon).unwrap_or_else(|error| panic!("{daemon:?}: {error}"));
        for (list, name) in [("containers", "agent"), ("initContainers", "prepare")] {
            let args = words(&container(&objects, list, name)["args"]);
            assert_eq!(args[0], "cluster");
            let command = args.iter().copied().chain(["--node=n"]);
            Words::try_parse_from(command).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        }
        let volumes = &kind(&objects, "DaemonSet", "millstream")["spec"]["template"]["spec"]["volumes"];
        let names: Vec<&Value> =
            volumes.as_sequence().unwrap().iter().map(|volume| &volume["name"]).collect();
        for container in
            [container(&objects, "containers", "daemon"), container(&objects, "containers", "agent")]
        {
            for mount in container["volumeMounts"].as_sequence().unwrap() {
                assert!(names.contains(&&mount["name"]), "{mount:?}");
            }
        }
    }
}
