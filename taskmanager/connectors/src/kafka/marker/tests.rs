use super::*;
use streamforge_core::manifest::StagedObject;

fn id(n: u64) -> CheckpointId {
    CheckpointId::from_stored(n)
}

fn author(generation: u64, epoch: u64, table: u64) -> Author {
    Author {
        generation: Generation::from_stored(generation),
        epoch: Epoch::from_stored(epoch),
        table,
    }
}

fn me() -> Author {
    author(3, 7, 2)
}

fn interval(n: u64, parts: usize) -> StagedInterval {
    let object = StagedObject {
        staged: String::new(),
        published: String::new(),
        bytes: 0,
        rows: 0,
        detail: String::new(),
    };
    StagedInterval {
        id: id(n),
        objects: vec![object; parts],
    }
}

fn marker(n: u64, part: u32, parts: u32) -> Marker {
    Marker {
        interval: id(n),
        part,
        parts,
        author: me(),
    }
}

#[test]
fn a_marker_is_read_back_from_its_text() {
    let marker = marker(17, 2, 3);

    let text = marker.to_string();

    assert_eq!(text, "streamforge-1 g3 e7 t2 2/3");
    assert_eq!(Marker::decode(17, &text), Ok(marker));
    for foreign in [
        "",
        "streamforge-2 g3 e7 t2 2/3",
        "streamforge-1 g3 e7 2/3",
        "x",
    ] {
        assert!(Marker::decode(17, foreign).is_err(), "{foreign}");
    }
    assert!(Marker::decode(-1001, &text).is_err());
}

/// X1, exhaustive over small numbers: what is below the marker is done, what is above it begins at
/// its first part, what is at it goes on.
#[test]
fn x1_what_is_published_is_decided_by_the_marker_alone() {
    for at in 1..5 {
        for parts in 1..4 {
            for part in 0..=parts {
                let marker = marker(at, part, parts);
                for listed in 1..6u64 {
                    let step = next_step(&marker, id(listed), parts);
                    let expected = if listed < at || (listed == at && part == parts) {
                        Step::Done
                    } else if listed == at {
                        Step::Publish(part)
                    } else if part == parts {
                        Step::Publish(0)
                    } else {
                        Step::OlderUnfinished(id(at))
                    };
                    assert_eq!(step, expected, "marker {marker}, interval {listed}");
                }
            }
        }
    }
}

/// Attack 16: a publisher that cut the interval anew would lose or double rows.
#[test]
fn attack_16_another_cut_of_a_half_published_interval_is_refused_x1() {
    let step = next_step(&marker(5, 1, 3), id(5), 2);

    assert_eq!(
        step,
        Step::OtherCut {
            marker: 3,
            listed: 2
        }
    );
}

/// What readers of the topic see, and the marker: both change in one step or not at all.
struct Broker {
    marker: Option<Marker>,
    visible: Vec<(u64, u32)>,
}

impl Broker {
    fn commit(&mut self, rows: (u64, u32), marker: Marker) {
        self.visible.push(rows);
        self.marker = Some(marker);
    }
}

/// Publishes all listed intervals; dies before (`false`) or after (`true`) its n-th commit.
fn publish(
    broker: &mut Broker,
    listed: &[StagedInterval],
    dies: Option<(usize, bool)>,
    me: Author,
) {
    let decided = take_over(broker.marker, Listed::All(listed, id(0)), (me, Doubt::Open));
    let TakeOver::Write(mut marker) = decided else {
        panic!("{decided:?}");
    };
    broker.marker = Some(marker);
    let mut commits = 0;
    for interval in listed {
        let parts = u32::try_from(interval.objects.len()).unwrap();
        loop {
            let part = match next_step(&marker, interval.id, parts) {
                Step::Done => break,
                Step::Publish(part) => part,
                other => panic!("{other:?}"),
            };
            if dies == Some((commits, false)) {
                return;
            }
            let next = after_part(interval.id, part, parts, me);
            broker.commit((interval.id.get(), part), next);
            // The publisher may die before it knows that its commit was taken.
            if dies == Some((commits, true)) {
                return;
            }
            marker = next;
            commits += 1;
        }
    }
}

/// X1, attacks 6, 7, 8, 16: whatever the crashes, and with notices repeated in full, every listed part
/// becomes visible once and in order.
#[test]
fn x1_every_part_is_visible_once_whatever_the_crashes() {
    let listed = [interval(4, 2), interval(5, 1), interval(9, 3)];
    let expected = [(4, 0), (4, 1), (5, 0), (9, 0), (9, 1), (9, 2)];
    let deaths: Vec<(usize, bool)> = (0..6).flat_map(|n| [(n, false), (n, true)]).collect();
    for first in &deaths {
        for second in &deaths {
            let mut broker = Broker {
                marker: Some(Marker::after(id(3), author(1, 1, 0))),
                visible: Vec::new(),
            };
            publish(&mut broker, &listed, Some(*first), author(1, 2, 0));
            publish(&mut broker, &listed, Some(*second), author(1, 3, 0));
            publish(&mut broker, &listed, None, author(2, 4, 0));
            publish(&mut broker, &listed, None, author(2, 5, 0));
            assert_eq!(broker.visible, expected, "died at {first:?}, {second:?}");
        }
    }
}

/// X2: higher in any of the three.
#[test]
fn attack_13_a_publisher_that_finds_a_newer_marker_is_the_zombie_x2() {
    let newer = [
        author(4, 7, 2),
        author(3, 8, 2),
        author(3, 7, 3),
        author(4, 1, 0),
    ];
    for newer in newer {
        let found = marker(5, 1, 1).by(newer);
        let decided = take_over(
            Some(found),
            Listed::All(&[interval(6, 1)], id(6)),
            (me(), Doubt::Open),
        );
        assert_eq!(decided, TakeOver::Zombie(found), "{newer:?}");
    }
    for older in [me(), author(2, 7, 2), author(3, 6, 2), author(1, 1, 0)] {
        let found = marker(5, 1, 1).by(older);
        let decided = take_over(
            Some(found),
            Listed::All(&[interval(6, 1)], id(6)),
            (me(), Doubt::Open),
        );
        assert_eq!(decided, TakeOver::Write(found.by(me())), "{older:?}");
    }
}

/// X3, attack 50.
#[test]
fn attack_50_no_marker_and_nothing_listed_is_a_start_and_nothing_else_is_x3() {
    let open = (me(), Doubt::Open);

    assert_eq!(
        take_over(None, Listed::All(&[], id(12)), open),
        TakeOver::Write(Marker::after(id(12), me())),
        "a crash between manifest 0 and the first marker"
    );
    assert_eq!(
        take_over(
            None,
            Listed::All(&[interval(4, 1), interval(5, 1)], id(5)),
            open
        ),
        TakeOver::Vanished {
            oldest: id(4),
            listed_n: 2
        }
    );
    for doubt in [Doubt::AllYoung, Doubt::Accepted] {
        let decided = take_over(
            None,
            Listed::All(&[interval(4, 1), interval(5, 1)], id(5)),
            (me(), doubt),
        );
        let TakeOver::Write(marker) = decided else {
            panic!("{decided:?}");
        };
        assert_eq!(next_step(&marker, id(4), 1), Step::Publish(0));
        assert_eq!(next_step(&marker, id(5), 1), Step::Publish(0));
    }
}

#[test]
fn an_existing_marker_is_never_moved_back_x3() {
    let found = marker(40, 1, 1).by(author(1, 1, 0));

    let decided = take_over(Some(found), Listed::All(&[], id(12)), (me(), Doubt::Open));

    assert_eq!(decided, TakeOver::Write(found.by(me())));
}

/// C7: a rewind publishes nothing at or below the marker, and what was half done stays so.
#[test]
fn attack_18_a_rewind_below_a_half_published_interval_goes_on_above_it_c7() {
    let decided = take_over(
        Some(marker(20, 1, 3)),
        Listed::All(&[interval(15, 1)], id(15)),
        (me(), Doubt::Open),
    );
    let TakeOver::Write(marker) = decided else {
        panic!("{decided:?}");
    };

    assert_eq!(next_step(&marker, id(15), 1), Step::Done);
    assert_eq!(next_step(&marker, id(20), 3), Step::Done);
    assert_eq!(next_step(&marker, id(21), 1), Step::Publish(0));
}

/// A producer that is thrown away within an attempt knows one interval, not the manifest: what was
/// begun before it is never taken for done.
#[test]
fn a_half_published_interval_is_finished_before_the_next_whatever_is_asked_x1() {
    let found = marker(20, 1, 3).by(author(1, 1, 0));

    let decided = take_over(
        Some(found),
        Listed::One(&interval(21, 1)),
        (me(), Doubt::Open),
    );

    let TakeOver::Write(marker) = decided else {
        panic!("{decided:?}");
    };
    assert_eq!(next_step(&marker, id(21), 1), Step::OlderUnfinished(id(20)));
    assert_eq!(next_step(&marker, id(20), 3), Step::Publish(1));
}
